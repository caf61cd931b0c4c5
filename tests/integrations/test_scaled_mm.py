# SPDX-License-Identifier: MIT
"""torch._scaled_mm, F.scaled_mm and torch._int_mm under hipkittens.integrations.scaled_mm, and torchao training through them."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens.integrations import scaled_mm

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TYPES = {
    "gfx942": (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    "gfx950": (torch.float8_e4m3fn, torch.float8_e5m2),
}


@pytest.fixture(params=TYPES)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
        assert simulation.findings == []


@pytest.fixture(autouse=True)
def reference_of_any_cpu():
    """PyTorch's reference result. On a CPU with AMX, PyTorch 2.13 hands products with tensor-wise scales to oneDNN, which refuses fnuz;
    its own kernel does not.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def codes(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def scales(*shape, seed=0):
    """Scales over a wider range than that of the quantized values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) * 2.0 ** torch.randint(-8, 9, shape, generator=generator)


def steps_apart(ours, theirs):
    """The largest difference in steps of the 16-bit format, over elements whose sum does not nearly cancel."""
    order = [each.view(torch.int16).int() for each in (ours, theirs)]
    order = [torch.where(each < 0, -32768 - each, each) for each in order]
    kept = theirs.abs() > theirs.float().abs().mean() * 1e-3
    return (order[0] - order[1]).abs()[kept].max().item()


def ours_and_theirs(call):
    """The result of a call, which ran here, and that of PyTorch's own kernel."""
    theirs = call()
    with scaled_mm.active():
        ours = call()
        assert scaled_mm.passed_on() == []
    return ours, theirs


def arguments(recipe, m, n, k, first, second):
    a, b = codes(m, k, dtype=first), codes(n, k, dtype=second, seed=1).t()
    if recipe == "tensor":
        return a, b, scales(1)[0], scales(1, seed=1)[0]
    return a, b, scales(m, 1), scales(1, n, seed=1)


@pytest.mark.parametrize("recipe", ["tensor", "row"])
def test_within_one_step_of_pytorch(target, recipe):
    fp8, bf8 = TYPES[target]
    mixes = [(fp8, fp8), (bf8, fp8), (fp8, bf8)] * 2
    for (m, n, k), (first, second) in zip(
        [(17, 32, 48), (1, 128, 16), (128, 257, 160), (257, 16, 128), (5, 7, 9), (64, 17, 2880)],
        mixes,
        strict=True,
    ):
        given = arguments(recipe, m, n, k, first, second)
        bias = torch.randn(n).to(BF16)
        for more in ({}, {"bias": bias}, {"use_fast_accum": True}):
            ours, theirs = ours_and_theirs(lambda g=given, o=more: torch._scaled_mm(*g, out_dtype=BF16, **o))
            assert ours.shape == theirs.shape and ours.stride() == theirs.stride()
            assert steps_apart(ours, theirs) <= 1


@pytest.mark.parametrize("recipe", ["tensor", "row"])
def test_output_dtypes(target, recipe):
    fp8, bf8 = TYPES[target]
    given = arguments(recipe, 33, 48, 64, fp8, fp8)
    for dtype in (None, fp8, bf8, F16, F32, BF16):
        ours, theirs = ours_and_theirs(lambda dtype=dtype: torch._scaled_mm(*given, out_dtype=dtype))
        assert ours.dtype == theirs.dtype == (fp8 if dtype is None else dtype)
        step = {fp8: 0.13, bf8: 0.26, F32: 1e-5}.get(ours.dtype, 1e-2)
        # Beyond the largest fnuz value PyTorch's conversion gives NaN.
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=step, atol=1e-3, equal_nan=True)
    # scale_result has no effect for other results.
    ours, theirs = ours_and_theirs(
        lambda: torch._scaled_mm(*given, scale_result=torch.tensor(3.0), out_dtype=BF16)
    )
    assert steps_apart(ours, theirs) <= 1


def test_out(target):
    fp8, _ = TYPES[target]
    given = arguments("row", 17, 32, 48, fp8, fp8)
    right, _ = ours_and_theirs(lambda: torch._scaled_mm(*given, out_dtype=BF16))
    for out in (torch.full((17, 32), torch.nan, dtype=BF16), torch.full((32, 17), torch.nan, dtype=BF16).t()):
        with scaled_mm.active():
            assert torch._scaled_mm(*given, out_dtype=BF16, out=out) is out
            assert scaled_mm.passed_on() == []
        assert torch.equal(out, right)
    with scaled_mm.active(), pytest.raises(ValueError, match="out"):
        torch._scaled_mm(*given, out_dtype=F32, out=out)


def test_functional_scaled_mm(target):
    fp8, _ = TYPES[target]
    scaling, swizzle = F.ScalingType, F.SwizzleType
    for recipe, kind in (("tensor", scaling.TensorWise), ("row", scaling.RowWise)):
        a, b, scale_a, scale_b = arguments(recipe, 17, 32, 48, fp8, fp8)
        for more in ({}, {"swizzle_a": swizzle.NO_SWIZZLE, "swizzle_b": swizzle.NO_SWIZZLE}, {"bias": torch.randn(32).to(BF16)}):  # fmt: skip
            ours, theirs = ours_and_theirs(
                lambda g=(a, b, scale_a, kind, scale_b, kind), o=more: F.scaled_mm(*g, **o)
            )
            assert steps_apart(ours, theirs) <= 1


def test_int_mm(target):
    generator = torch.Generator().manual_seed(0)
    for m, n, k in [(17, 32, 48), (1, 8, 8), (130, 257, 160)]:
        a, b = (
            torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
            for shape in ((m, k), (n, k))
        )
        ours, theirs = ours_and_theirs(lambda a=a, b=b: torch._int_mm(a, b.t()))
        assert ours.dtype == torch.int32 and torch.equal(ours, theirs)


def test_a_program_compiled(target):
    torch._dynamo.reset()
    fp8, _ = TYPES[target]
    given = arguments("row", 32, 32, 64, fp8, fp8)

    def block(*given):
        return torch._scaled_mm(*given, out_dtype=BF16) * 2

    with scaled_mm.active():
        eager = block(*given)
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")(*given)
        assert scaled_mm.passed_on() == []
    assert torch.equal(compiled, eager)


def test_what_goes_on_to_pytorch():
    fp8, bf8 = TYPES["gfx950"]
    one = torch.ones(())
    a, b = codes(16, 32, dtype=fp8), codes(16, 32, dtype=fp8).t()
    calls = {
        "self is torch.float8_e4m3fnuz": lambda: torch._scaled_mm(
            *(each.to(torch.float8_e4m3fnuz) for each in (a.float(), b.float())), one, one, out_dtype=BF16
        ),
        "both e4m3, one e4m3 and one e5m2": lambda: torch._scaled_mm(
            a.float().to(bf8), b.float().to(bf8), one, one, out_dtype=BF16
        ),
        "scale_result is given": lambda: torch._scaled_mm(a, b, one, one, scale_result=one, out_dtype=fp8),
    }
    for reason, call in calls.items():
        theirs = call()
        with hipkittens.simulate("gfx950"), scaled_mm.active():
            ours = call()
            reasons = scaled_mm.passed_on()
        assert torch.equal(ours.float(), theirs.float())
        assert len(reasons) == 1, (reason, reasons)


def test_outside_nothing_is_changed(target):
    fp8, _ = TYPES[target]
    given = arguments("tensor", 16, 32, 48, fp8, fp8)
    before = torch._scaled_mm(*given, out_dtype=BF16)
    assert not scaled_mm.is_active()
    with scaled_mm.active():
        assert scaled_mm.is_active()
        with scaled_mm.active():
            pass
        assert scaled_mm.is_active()
    scaled_mm.activate()
    scaled_mm.restore()
    assert not scaled_mm.is_active()
    assert torch.equal(torch._scaled_mm(*given, out_dtype=BF16), before)
    row = torch.ones(16, 1)
    for context in (scaled_mm.active(), torch.no_grad()):
        with context, pytest.raises(ValueError, match="Invalid scaling configuration"):
            torch._scaled_mm(given[0], given[1], row, torch.ones(7, 3), out_dtype=BF16)


def grouped_arguments(target, n=32, k=48):
    """Arguments as torch._scaled_grouped_mm expects them: row scales in one dimension, column scales in two."""
    fp8 = TYPES[target][0]
    a, b = codes(40, k, dtype=fp8), codes(3, n, k, dtype=fp8, seed=1).mT
    return a, b, scales(40), scales(3, n, seed=1), torch.tensor([17, 17, 35], dtype=torch.int32)


@pytest.mark.skipif(not hasattr(torch, "_scaled_grouped_mm"), reason="this torch has no _scaled_grouped_mm")
def test_products_of_groups(target):
    a, b, scale_a, scale_b, offs = grouped_arguments(target)
    expected = hipkittens.grouped_matmul(a, b, offs, scale_a=scale_a, scale_b=scale_b)
    with scaled_mm.active():
        found = [torch._scaled_grouped_mm(a, b, scale_a, scale_b, offs)]
        found.append(
            torch._scaled_grouped_mm(a, b, scale_a, scale_b, offs, out_dtype=BF16, use_fast_accum=True)
        )
        if hasattr(F, "scaled_grouped_mm"):
            by_rows = F.ScalingType.RowWise
            found.append(F.scaled_grouped_mm(a, b, scale_a, by_rows, scale_b, by_rows, offs=offs))
        assert scaled_mm.passed_on() == []
    for each in found:
        assert each.dtype == BF16 and torch.equal(each, expected)
    exact = torch.zeros(40, 32, dtype=torch.float64)
    for group, (begin, end) in enumerate(((0, 17), (17, 17), (17, 35))):
        exact[begin:end] = (a[begin:end].double() * scale_a[begin:end, None]) @ (
            b[group].double() * scale_b[group]
        )
    assert (expected.double() - exact).norm() <= 2.5e-3 * exact.norm()


def mx_operand(rows, k, bits, seed):
    """Quantized values (rows, K), their e8m0 scales (rows, K / 32) and the values of both in float64."""
    random = torch.Generator().manual_seed(seed)
    scales = torch.randint(121, 134, (rows, k // 32), generator=random).to(torch.uint8)
    if bits == 4:
        values = torch.randint(0, 256, (rows, k // 2), generator=random).to(torch.uint8)
        exact = hipkittens.dequantize(values, scales, hipkittens.QuantSpec("mxfp4"), torch.float32).double()
        return values.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e8m0fnu), exact
    values = torch.randn(rows, k, generator=random).to(torch.float8_e4m3fn)
    powers = torch.ldexp(torch.ones(scales.shape, dtype=torch.float64), scales.int() - 127)
    return values, scales.view(torch.float8_e8m0fnu), values.double() * powers.repeat_interleave(32, 1)


def in_tiles(scales):
    """SWIZZLE_32_4_4, by its definition, with zeros in the padding."""
    rows, columns = scales.shape
    across = -(-columns // 4)
    out = torch.zeros(-(-rows // 128) * across * 512, dtype=torch.uint8)
    r, c = torch.arange(rows)[:, None], torch.arange(columns)
    place = ((r // 128) * across + c // 4) * 512 + (r % 32) * 16 + (r // 32 % 4) * 4 + c % 4
    out[place] = scales.view(torch.uint8)
    return out


@pytest.mark.skipif(not hasattr(F, "scaled_grouped_mm"), reason="this torch has no F.scaled_grouped_mm")
@pytest.mark.parametrize("bits", [8, 4])
def test_products_of_groups_in_mx_formats(bits):
    """Scales in rows, and swizzled: each group of rows starts a new tile, and the scale tensor is larger than needed."""
    ends, n, k = (40, 40, 190, 201), 136, 160
    a, scale_a, left = mx_operand(205, k, bits, 1)
    b, scale_b, right = mx_operand(len(ends) * n, k, bits, 2)
    b, scale_b, right = (each.view(len(ends), n, each.shape[1]) for each in (b, scale_b, right))
    offs = torch.tensor(ends, dtype=torch.int32)
    exact = torch.zeros(205, n, dtype=torch.float64)
    ranges = list(zip((0, *ends), ends, strict=False))
    for group, (begin, end) in enumerate(ranges):
        exact[begin:end] = left[begin:end] @ right[group].T
    tiles = torch.cat([in_tiles(scale_a[begin:end]) for begin, end in ranges])
    room = torch.full(((205 + 128 * len(ends)) * 8,), 127, dtype=torch.uint8)
    room[: len(tiles)] = tiles
    swizzled_a = room.view(-1, 8).view(torch.float8_e8m0fnu)
    swizzled_b = torch.stack([in_tiles(each) for each in scale_b]).view(torch.float8_e8m0fnu)
    by_32, tiled = F.ScalingType.BlockWise1x32, F.SwizzleType.SWIZZLE_32_4_4
    with hipkittens.simulate("gfx950", checks="all") as simulation, scaled_mm.active():
        found = [
            F.scaled_grouped_mm(a, b.mT, scale_a, by_32, scale_b, by_32, offs=offs),
            F.scaled_grouped_mm(a, b.mT, swizzled_a, by_32, swizzled_b, by_32, tiled, tiled, offs=offs),
        ]
        if bits == 8:
            found.append(torch._scaled_grouped_mm(a, b.mT, swizzled_a, swizzled_b, offs, out_dtype=BF16))
        assert scaled_mm.passed_on() == []
    assert simulation.findings == []
    for each in found:
        assert each.dtype == BF16 and torch.equal(each, found[0])
    assert (found[0].double() - exact).norm() <= 2.5e-3 * exact.norm() and not found[0][201:].any()


@pytest.mark.skipif(not hasattr(F, "scaled_grouped_mm"), reason="this torch has no F.scaled_grouped_mm")
def test_swizzled_scales_of_groups_that_are_too_few():
    a, scale_a, _ = mx_operand(40, 160, 8, 1)
    b, scale_b, _ = mx_operand(2 * 136, 160, 8, 2)
    b, scale_b = b.view(2, 136, 160), scale_b.view(2, 136, 5)
    offs = torch.tensor([17, 40], dtype=torch.int32)
    with hipkittens.simulate("gfx950"), scaled_mm.active():
        swizzled = torch.stack([in_tiles(each) for each in scale_b]).view(torch.float8_e8m0fnu)
        for given, says in (
            ((scale_a, scale_b), "too few whole tiles of 128 rows for 136"),
            ((scale_a, swizzled), "no whole tile of 128 rows"),
        ):
            with pytest.raises(NotImplementedError) as raised:
                torch._scaled_grouped_mm(a, b.mT, *given, offs, out_dtype=BF16)
            assert says in str(raised.value)


@pytest.mark.skipif(not hasattr(torch, "_scaled_grouped_mm"), reason="this torch has no _scaled_grouped_mm")
def test_products_of_groups_that_no_kernel_has(target):
    """PyTorch has none for CPU tensors either, and its error says so."""
    a, b, scale_a, scale_b, offs = grouped_arguments(target)
    of_k = codes(40, 32, dtype=a.dtype, seed=3)
    wrong = [
        ((a.t(), of_k, scales(144), scales(96), offs), {}, "groups of rows"),
        ((a, b, scale_a, scale_b, offs), {"scale_result": scales(1)}, "scale_result is given"),
        ((a, b, scale_a, scale_b[:, :5], offs), {}, "scale_b (3, 5)"),
        ((a, b, scale_a, scale_b), {}, "offs is None"),
    ]
    for given, options, says in wrong:
        with scaled_mm.active():
            with pytest.raises(NotImplementedError) as raised:
                torch._scaled_grouped_mm(*given, **options)
            assert says in str(raised.value) and "PyTorch has no" in str(raised.value)
            assert any(says in reason for reason in scaled_mm.passed_on())
    with pytest.raises(NotImplementedError):
        torch._scaled_grouped_mm(a, b, scale_a, scale_b, offs)
