# SPDX-License-Identifier: MIT
"""hipkittens.quantize: quantized values and scales bitwise equal to a reference made of integers and float32 steps."""

import itertools
import math

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, dequantize, expert_sort, quantize
from hipkittens.scaled_gemm import shuffled

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FLOATS = {
    "gfx942": {"fp8": torch.float8_e4m3fnuz, "bf8": torch.float8_e5m2fnuz},
    "gfx950": {"fp8": torch.float8_e4m3fn, "bf8": torch.float8_e5m2, "mxfp8": torch.float8_e4m3fn},
}
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def groups_of(x, spec):
    """Values (..., groups, columns per group) in float32, with zeros past the end."""
    if spec.granularity == "tensor":
        return x.float().reshape(1, -1)
    size = x.shape[-1] if spec.granularity == "row" else spec.granularity
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[-1] % size))
    return padded.unflatten(-1, (-1, size))


def power_of(magnitude, spec, largest_code):
    """The e8m0 byte from the largest magnitude, by frexp."""
    fraction, exponent = torch.frexp(magnitude.double())
    mantissa, exponent = fraction * 2, exponent - 1
    largest, power = math.frexp(largest_code)
    largest, power = 2 * largest, power - 1
    rises = {
        "floor": mantissa < 0,
        "even": mantissa >= 1.75,
        "half_up": mantissa >= 1.5,
        "round_up": mantissa > largest,
        "ceil": mantissa > 1,
    }[spec.scale_rule]
    byte = exponent - power + rises.int() + 127
    byte = torch.where(magnitude == 0, 0, byte.clamp(min=0))
    return torch.where(magnitude.isfinite(), byte, 255).to(torch.uint8)


def e2m1(values, away):
    """Nearest e2m1 encodings, half-way cases to the even one or away from zero."""
    distance = (values.double().abs().unsqueeze(-1) - E2M1).abs()
    order = torch.arange(8) if not away else torch.arange(8).flip(0)
    # Among equal distances the preferred one comes first: even encodings, or the larger ones.
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7]) if not away else order
    codes = order[distance[..., order].argmin(-1)]
    return (codes | torch.signbit(values).long() << 3).to(torch.uint8)


def reference(x, spec, target, scale=None):
    """Quantized values (in the order of x, e2m1 not packed) and scales of groups."""
    groups = groups_of(x, spec)
    magnitude = groups.abs().amax(-1)
    largest = {
        "fp8": 240 if target == "gfx942" else 448,
        "bf8": 57344,
        "int8": 127,
        "mxfp8": 448,
        "mxfp4": 6,
    }[spec.format]
    if spec.format.startswith("mx") or spec.scale_rule == "round_up":
        byte = power_of(magnitude, spec, largest)
        values = torch.ldexp(groups, (127 - byte.int()).unsqueeze(-1))
        values = torch.where((byte == 255).unsqueeze(-1), groups * 2.0**-128, values)
        scales = byte
        if not spec.format.startswith("mx"):
            scales = torch.where(
                byte == 255, math.nan, torch.ldexp(torch.ones_like(magnitude), byte.int() - 127)
            )
    else:
        bounded = magnitude.clamp(min=spec.floor, max=spec.scale_bound)
        scales = torch.where(bounded == 0, spec.zero_scale, bounded / largest)
        if scale is not None:
            scales = scale.reshape(1)
        inverse = torch.where(bounded == 0, 0.0, 1 / scales) if scale is None else 1 / scales
        values = groups * inverse.unsqueeze(-1)
    if spec.format == "mxfp4":
        codes = e2m1(values, spec.rounding == "away")
    elif spec.format == "int8":
        whole = values.trunc() if spec.rounding == "truncate" else values.round()
        codes = whole.nan_to_num(0).clamp(-127, 127).to(torch.int8)
    else:
        dtype = FLOATS[target][spec.format]
        largest = torch.finfo(dtype).max
        codes = values.clamp(-largest, largest).to(dtype).view(torch.uint8)
    codes = codes.reshape(x.shape) if spec.granularity == "tensor" else codes.flatten(-2)[..., : x.shape[-1]]
    return codes, scales


def unpacked(codes, spec):
    if spec.format == "mxfp4":
        return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    return codes if spec.format == "int8" else codes.view(torch.uint8)


def assert_equal_codes(x, spec, target, scale=None):
    codes, scales = quantize(x, spec, scale)
    right, of_groups = reference(x, spec, target, scale)
    assert torch.equal(scales.reshape(-1), of_groups.reshape(-1).to(scales.dtype)) or torch.allclose(
        scales.reshape(-1), of_groups.reshape(-1), rtol=0, atol=0, equal_nan=True
    )
    mine = unpacked(codes, spec)
    assert torch.equal(mine, right), (mine != right).nonzero()[:4]
    if target == "gfx942" and spec.format in ("fp8", "bf8") and x.isfinite().all():
        assert (mine != 0x80).all()  # the NaN of these formats
    return codes, scales


SPECS = {
    "fp8 rows": QuantSpec("fp8"),
    "fp8 tensor": QuantSpec("fp8", "tensor"),
    "fp8 32": QuantSpec("fp8", 32),
    "fp8 64": QuantSpec("fp8", 64),
    "fp8 128": QuantSpec("fp8", 128, floor=1e-10),
    "bf8 rows": QuantSpec("bf8"),
    "bf8 128": QuantSpec("bf8", 128),
    "int8 rows": QuantSpec("int8"),
    "int8 truncate": QuantSpec("int8", rounding="truncate"),
    "int8 tensor": QuantSpec("int8", "tensor"),
    "bounds": QuantSpec("fp8", floor=0.5, scale_bound=1.5, zero_scale=0.0),
    "fp8 rows, powers of two": QuantSpec("fp8", scale_rule="round_up"),
    "bf8 rows, powers of two": QuantSpec("bf8", scale_rule="round_up"),
    "fp8 tensor, a power of two": QuantSpec("fp8", "tensor", scale_rule="round_up"),
    "mxfp4": QuantSpec("mxfp4"),
    "mxfp4 away": QuantSpec("mxfp4", rounding="away", scale_rule="round_up"),
    "mxfp8": QuantSpec("mxfp8"),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("columns", [1, 2, 13, 75, 130, 1024, 4098, 8200])
def test_codes_and_scales_are_exact(target, spec, dtype, columns):
    if spec.format == "mxfp8" and target == "gfx942":
        pytest.skip("refused: test_targets_have_their_own_formats")
    if spec.format == "mxfp4" and columns % 2:
        pytest.skip("refused: test_bad_input")
    x = draw(5, columns, dtype=dtype, scale=3.0)
    x[1] = 0
    x[2] *= 1e-4
    assert_equal_codes(x, spec, target)


BLOCK = (128, 128)


@pytest.mark.parametrize("spec", [QuantSpec("fp8", BLOCK), QuantSpec("bf8", BLOCK, floor=0.5), QuantSpec("int8", BLOCK, rounding="truncate")], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("shape", [(1, 1), (2, 17), (127, 255), (128, 128), (2, 129, 257), (3, 1, 5, 130)])
def test_blocks(target, spec, dtype, shape):
    """Each block as a separate tensor."""
    x = draw(*shape, dtype=dtype, scale=3.0)
    x[..., -1, -1] = 40.0
    x[..., : shape[-2] // 2, :128] *= 0.001
    codes, scales = quantize(x, spec)
    rows, columns = -(-shape[-2] // 128), -(-shape[-1] // 128)
    assert codes.shape == x.shape and scales.shape == (*shape[:-2], rows, columns)
    of_one = QuantSpec(spec.format, "tensor", rounding=spec.rounding, floor=spec.floor)
    for matrix, mine, found in zip(x.flatten(0, -3).unbind() if x.dim() > 2 else [x],
                                   unpacked(codes, spec).reshape(-1, *shape[-2:]), scales.reshape(-1, rows, columns), strict=True):  # fmt: skip
        for i, j in itertools.product(range(rows), range(columns)):
            here = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            right, of_block = reference(matrix[here].contiguous(), of_one, target)
            assert torch.equal(mine[here], right) and torch.equal(found[i, j], of_block[0])


def test_blocks_of_strided_empty_and_special_matrices(target):
    spec = QuantSpec("int8", BLOCK)
    storage = draw(2, 3, 150, 140)
    for x in (
        storage[:, 1, 3:, 1:131],
        storage.transpose(1, 2),
        storage[0, 0].t(),
        draw(1, 9).expand(130, 9),
    ):
        for mine, right in zip(quantize(x, spec), quantize(x.contiguous(), spec), strict=True):
            assert torch.equal(mine, right)
    for shape, of_scales in (((0, 5), (0, 1)), ((3, 0, 5), (3, 0, 1)), ((0, 130, 5), (0, 2, 1))):
        codes, scales = quantize(torch.zeros(shape, dtype=BF16), spec)
        assert codes.shape == shape and scales.shape == of_scales
    x = storage[0, 0].clone()
    clean = quantize(x, spec)
    x[149, 139] = math.nan
    codes, scales = quantize(x, spec)
    assert scales[1, 1].isnan() and (codes[128:, 128:] == 0).all()
    assert torch.equal(scales.flatten()[:3], clean[1].flatten()[:3]) and torch.equal(
        codes[:128], clean[0][:128]
    )


@pytest.mark.parametrize("spec", [QuantSpec("fp8"), QuantSpec("int8", rounding="truncate"), QuantSpec("fp8", 64, layout="columns"), QuantSpec("mxfp4")], ids=str)  # fmt: skip
@pytest.mark.parametrize(
    ("dtype", "columns"), [(BF16, 2), (BF16, 514), (F16, 1024), (F32, 130), (BF16, 8202)]
)
def test_factors(target, spec, dtype, columns):
    """The quantized values of the product in float32."""
    x = draw(2, 3, columns, dtype=dtype)
    smooth = draw(4, columns, dtype=F32, seed=1).abs() + 0.1
    ids = torch.tensor([[0, 3, -1], [2, 4, 1]], dtype=torch.int32)
    x[0, 2, 0], x[1, 1, -1] = math.nan, math.inf  # from rows that have no factors
    there = (ids >= 0) & (ids < 4)
    product = torch.where(there.unsqueeze(-1), x.float() * smooth[ids.clamp(0, 3)], 0.0)
    right = quantize(product, spec)
    for numbers in (ids, ids.long(), ids.long() + 2**32 * ~there, ids.t().contiguous().t()):
        mine = quantize(x, spec, smooth=smooth, smooth_ids=numbers)
        assert all(
            torch.equal(unpacked(a, spec), unpacked(b, spec))
            for a, b in zip(mine[:1], right[:1], strict=True)
        )
        assert torch.equal(mine[1], right[1])
    x = x.nan_to_num(0.0, 0.0)
    for factors in (smooth[1], smooth.t().contiguous().t()[1]):
        mine, right = quantize(x, spec, smooth=factors), quantize(x.float() * smooth[1], spec)
        assert torch.equal(unpacked(mine[0], spec), unpacked(right[0], spec)) and torch.equal(
            mine[1], right[1]
        )


def test_tokens_of_several_experts(target):
    x, smooth = draw(7, 96), draw(5, 96, dtype=F32, seed=1).abs()
    ids = torch.randint(0, 5, (7, 2), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    codes, scales = quantize(x.expand(2, 7, 96), QuantSpec("int8"), smooth=smooth, smooth_ids=ids.t())
    right = quantize(x.float() * smooth[ids.t()], QuantSpec("int8"))
    assert torch.equal(codes, right[0]) and torch.equal(scales, right[1])


def test_there_and_back_with_blocks_and_factors(target):
    x = draw(2, 130, 140, dtype=F32)
    spec = QuantSpec("int8", BLOCK)
    back = dequantize(*quantize(x, spec), spec, F32)
    assert ((back - x).abs() <= 0.51 * x.abs().max() / 127).all()
    smooth, ids = draw(3, 140, dtype=F32, seed=1).abs() + 0.5, torch.arange(-1, 129).expand(2, 130) % 4
    for granularity in ("row", 32):
        spec = QuantSpec("int8", granularity)
        for options in ({"smooth": smooth, "smooth_ids": ids}, {"smooth": smooth[0]}):
            back = dequantize(*quantize(x, spec, **options), spec, F32, **options)
            known = (ids < 3) if "smooth_ids" in options else torch.ones_like(ids, dtype=torch.bool)
            assert ((back - x)[known].abs() <= 0.51 / 127 * 2 * (x * smooth.max()).abs().max()).all()
            assert (back[~known] == 0).all()
    spec = QuantSpec("int8")
    none = {"smooth": smooth[:0], "smooth_ids": ids}
    assert (dequantize(*quantize(x, spec, **none), spec, F32, **none) == 0).all()


@pytest.mark.parametrize("spec", [QuantSpec("fp8"), QuantSpec("bf8"), QuantSpec("int8"), QuantSpec("mxfp4")], ids=lambda spec: spec.format)  # fmt: skip
def test_every_bf16_pattern(target, spec):
    """Each next to a value that sets the scale, so that quantized values of every size occur."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16)
    patterns = patterns[patterns.isfinite()]
    for scale in (1.0, 2.0**-100, 2.0**100):
        inside = patterns[patterns.float().abs() <= 448 * scale]
        inside = inside[: inside.numel() // 31 * 31].reshape(-1, 31)
        x = torch.cat((inside, torch.full_like(inside[:, :1], 448 * scale)), 1)
        assert_equal_codes(x, spec, target)


RULES = ("floor", "even", "half_up", "round_up", "ceil")


@pytest.mark.parametrize("rounding", ["even", "away"])
@pytest.mark.parametrize("rule", RULES)
def test_mx_scales(target, rule, rounding):
    """Every exponent with the mantissas where rules differ, and ties of e2m1."""
    mantissas = torch.tensor([1, 1.0078125, 1.4921875, 1.5, 1.5078125, 1.7421875, 1.75, 1.7578125, 1.9921875])
    largest = torch.cat([torch.ldexp(mantissas, torch.tensor(e)) for e in range(-126, 128)]).to(F32)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -5.0, 0.0]) / 8
    rest = largest.unsqueeze(1) * torch.cat((ties, torch.linspace(-1, 1, 21))).unsqueeze(0)
    x = torch.cat((largest.unsqueeze(1), rest), 1)
    assert x.shape[1] == 32
    formats = ["mxfp4"] if target == "gfx942" or rounding == "away" else ["mxfp4", "mxfp8"]
    for format in formats:
        assert_equal_codes(x, QuantSpec(format, scale_rule=rule, rounding=rounding), target)


@pytest.mark.parametrize("spec", [QuantSpec("fp8", 32), QuantSpec("mxfp4"), QuantSpec("int8", 32), QuantSpec("fp8")], ids=str)  # fmt: skip
def test_nan_and_infinity_stay_in_their_group(target, spec):
    x = draw(3, 96, dtype=F32)
    clean, of_clean = quantize(x, spec)
    x[0, 40], x[1, 70] = math.nan, math.inf
    codes, scales = quantize(x, spec)
    mine, right = unpacked(codes, spec), unpacked(clean, spec)
    whole_rows = spec.granularity == "row"
    spoiled = torch.zeros(3, 96, dtype=torch.bool)
    spoiled[0, slice(None) if whole_rows else slice(32, 64)] = True
    spoiled[1, slice(None) if whole_rows else slice(64, 96)] = True
    assert torch.equal(mine[~spoiled], right[~spoiled])
    if spec.format == "mxfp4":
        assert scales[0, 1] == 255 and scales[1, 2] == 255
        assert torch.equal(scales[2], of_clean[2])
    elif spec.format == "fp8":
        assert codes[0].float()[spoiled[0]].isnan().all()
        assert scales[0].isnan().any() and scales[1].isinf().any()
        assert codes[1, 70].float().isnan()


@pytest.mark.parametrize("rows", [1, 33, 255, 257])
@pytest.mark.parametrize("groups", [1, 5, 7, 8, 45])
def test_shuffled_scales(target, rows, groups):
    x = draw(rows, 32 * groups) * torch.logspace(-4, 4, 32 * groups, base=2.0).to(BF16)
    _, plain = quantize(x, QuantSpec("mxfp4"))
    _, shuffled = quantize(x, QuantSpec("mxfp4", layout="shuffled"))
    padded = torch.full((-(-rows // 256) * 256, -(-groups // 8) * 8), 127, dtype=torch.uint8)
    padded[:rows, :groups] = plain
    assert shuffled.shape == padded.shape
    order = padded.view(padded.shape[0] // 32, 2, 16, padded.shape[1] // 8, 2, 4).permute(0, 3, 5, 2, 4, 1)
    assert torch.equal(shuffled.reshape(-1), order.reshape(-1))


def test_scales_in_columns(target):
    x = draw(3, 5, 300)
    spec = QuantSpec("fp8", 128)
    codes, scales = quantize(x, spec)
    turned, columns = quantize(x, QuantSpec("fp8", 128, layout="columns"))
    assert torch.equal(codes.view(torch.uint8), turned.view(torch.uint8))
    assert torch.equal(scales, columns) and columns.stride(-1) == 15 and columns.stride(-2) == 1


def test_a_scale_that_is_given(target):
    x, scale = draw(7, 130, scale=100.0), torch.tensor(0.125)
    spec = QuantSpec("fp8", "tensor")
    codes, same = assert_equal_codes(x, spec, target, scale)
    assert same is scale and codes.dtype == FLOATS[target]["fp8"]


def test_a_tensor_of_many_workgroups(target):
    x = draw(2100, 1000)
    x[2099, 999] = 77.0
    assert_equal_codes(x, QuantSpec("int8", "tensor"), target)


def test_strides_without_copies(target):
    storage = draw(7, 5, 6, 70)
    views = [storage[..., 3:43], storage.transpose(0, 2)[..., :64], storage[:, 2], storage[::2, 1:3, ::3, 1:69],
             storage.permute(2, 0, 1, 3), storage[0, 0, 0], draw(1, 64).expand(9, 64), storage[:0], draw(131)[1:],
             draw(40, 12).t()]  # fmt: skip
    for x, spec in itertools.product(
        views, (QuantSpec("fp8"), QuantSpec("int8", 32), QuantSpec("fp8", "tensor"))
    ):
        for mine, right in zip(quantize(x, spec), quantize(x.contiguous(), spec), strict=True):
            assert mine.shape == right.shape and torch.equal(mine.float(), right.float())


@pytest.mark.parametrize("spec", [SPECS[name] for name in ("fp8 rows", "fp8 128", "fp8 tensor", "int8 rows", "mxfp4")], ids=str)  # fmt: skip
def test_there_and_back(target, spec):
    x = draw(6, 256, dtype=F32)
    back = dequantize(*quantize(x, spec), spec, F32)
    step = {"fp8": 1 / 16, "int8": 1 / 127, "mxfp4": 1 / 4}[spec.format]
    assert ((back - x).abs() <= step * (x.abs() + x.abs().amax(-1, keepdim=True) / 2)).all()


def test_targets_have_their_own_formats(target):
    x = draw(4, 64)
    assert quantize(x, QuantSpec("fp8"))[0].dtype == FLOATS[target]["fp8"]
    assert quantize(x, QuantSpec("bf8"))[0].dtype == FLOATS[target]["bf8"]
    if target == "gfx942":
        with pytest.raises(ValueError, match="'mxfp8' has e4m3fn codes, which gfx942 has not"):
            quantize(x, QuantSpec("mxfp8"))


def test_opcheck(target):
    operator = torch.ops.hipkittens.quantize
    rest = (0.0, math.inf, 1.0)

    def call(
        x, code, group, layout, *last, scale=None, smooth=None, ids=None, choices=1, of_tokens=False, **of
    ):
        lists = (
            torch.tensor(of[name], dtype=torch.int32) if name in of else None
            for name in ("entries", "places", "ends")
        )
        return x, scale, smooth, ids, *lists, choices, of_tokens, code, group, layout, *rest, *last

    entries, places = [3, 0, 1, 2], [[1, 2], [3, 0]]
    calls = [
        call(draw(5, 34), 0, -1, 0, -1, 0, False, entries=[3, 9, -1], choices=2),
        call(draw(3, 4, 34), 0, -1, 0, -1, 0, False),
        call(draw(5, 34, dtype=F32), 2, 0, 0, -1, 0, True, scale=torch.ones(1)),
        call(draw(5, 34), 3, 32, 2, 2, 1 << 22, False),
        call(draw(5, 34), 3, 32, 2, 2, 1 << 22, False, ends=[2, 4]),
        call(draw(2, 40), 0, -1, 0, -1, 0, False, entries=entries, places=places, choices=2),
        call(draw(2, 40), 0, -1, 0, -1, 0, False, entries=entries, places=places, choices=2, of_tokens=True),
        call(draw(5, 300), 1, 128, 1, -1, 0, False),
        call(draw(2, 5, 300), 0, -2, 0, -1, 0, False),
        call(
            draw(3, 4, 34),
            2,
            -1,
            0,
            -1,
            0,
            False,
            smooth=draw(2, 34, dtype=F32),
            ids=torch.ones(3, 4, dtype=torch.int32),
        ),
    ]
    for inputs in calls:
        tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        assert set(torch.library.opcheck(operator.default, inputs, test_utils=tests).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(x):
        codes, scales = quantize(x * 2, QuantSpec("int8"))
        return codes.float() * scales

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for rows in (3, 8):
        x = draw(rows, 24, seed=rows)
        assert torch.equal(compiled(x), block(x))


ENTRY_SPECS = (FP8_ROWS := QuantSpec("fp8"), QuantSpec("int8"), QuantSpec("fp8", 128), QuantSpec("mxfp4"))


@pytest.mark.parametrize("spec", ENTRY_SPECS, ids=lambda spec: f"{spec.format}-{spec.granularity}")
@pytest.mark.parametrize("dtype", (BF16, F32), ids=str)
@pytest.mark.parametrize(("rows", "columns"), ((7, 96), (5, 1024), (1, 8200)))
def test_entries_are_rows_of_tokens(target, spec, dtype, rows, columns):
    x = draw(rows, columns + 8, dtype=dtype)[:, :columns]  # not contiguous
    choices = 3
    entries = torch.tensor(
        [0, 3 * rows - 1, -1, 3 * rows, 1, 2, 2**31 - 1, -(2**31)] + [0] * 9, dtype=torch.int32
    )
    there = (entries >= 0) & (entries < choices * rows)
    gathered = torch.where(there[:, None], x[torch.where(there, entries, 0).long() // choices], 0).to(dtype)
    for mine, same in zip(
        quantize(x, spec, entries=entries, choices=choices), quantize(gathered, spec), strict=True
    ):
        assert torch.equal(mine.view(torch.uint8), same.view(torch.uint8))


def test_entries_of_smoothed_rows_and_of_none(target):
    x, smooth = draw(4, 96), draw(3, 96, seed=1).float()
    entries, ids = torch.tensor([5, 0, 7, 2], dtype=torch.int32), torch.tensor([2, 3, 0, 1])
    mine = quantize(x, FP8_ROWS, entries=entries, choices=2, smooth=smooth, smooth_ids=ids)
    same = quantize(x[entries.long() // 2], FP8_ROWS, smooth=smooth, smooth_ids=ids)
    codes, scales = quantize(x, FP8_ROWS, entries=entries[:0])
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(mine, same, strict=True))
    assert (tuple(codes.shape), tuple(scales.shape)) == ((0, 96), (0, 1))
    codes, _ = quantize(x[:0], FP8_ROWS, entries=entries)
    assert tuple(codes.shape) == (4, 96) and not codes.view(torch.uint8).any()


BANDED = QuantSpec("mxfp4", layout="shuffled")
COLUMNS = QuantSpec("int8", 64, layout="columns")
# The last three have no kernel that reads tokens once.
TOKEN_SPECS = (
    *ENTRY_SPECS,
    COLUMNS,
    BANDED,
    QuantSpec("int8", rounding="truncate"),
    QuantSpec("fp6"),
    QuantSpec("mxfp6"),
)


@pytest.mark.parametrize(
    "spec", TOKEN_SPECS, ids=lambda spec: f"{spec.format}-{spec.granularity}-{spec.layout}"
)
@pytest.mark.parametrize("dtype", (BF16, F32), ids=str)
@pytest.mark.parametrize(
    ("rows", "choices", "columns"),
    ((7, 3, 96), (5, 8, 2080), (3, 64, 1024), (2, 65, 544), (2, 2, 8224), (4, 2, 100)),
)
def test_places_say_what_entries_say(target, spec, dtype, rows, choices, columns):
    if columns % 32 and ("6" in spec.format or spec.format == "mxfp4"):
        columns = 128
    x = draw(rows, columns + 8, dtype=dtype)[:, :columns]
    x[0, 5] = float("nan")
    ids = torch.randint(-1, 5, (rows, choices), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    order = expert_sort(ids, None, 4, layout="ragged")
    tokens = {"entries": order.entries, "choices": choices}
    if spec.layout == "shuffled":
        tokens["offs"] = order.offsets[1:]
    mine, same = quantize(x, spec, places=order.places, **tokens), quantize(x, spec, **tokens)
    there = torch.ones(mine[1].shape, dtype=torch.bool)
    if spec.layout == "shuffled":  # the rest of the bands is not written
        ends = [0, *order.offsets[1:].tolist(), rows * choices]
        bands = torch.zeros(mine[1].shape, dtype=torch.uint8)
        for group, (begin, end) in enumerate(itertools.pairwise(ends)):
            bands[32 * (begin // 32 + group) :][: end - begin] = 1
        there = shuffled(bands) == 1
    assert torch.equal(mine[0].view(torch.uint8), same[0].view(torch.uint8))
    assert torch.equal(
        torch.where(there, mine[1], 0).view(torch.uint8), torch.where(there, same[1], 0).view(torch.uint8)
    )


def test_it_has_no_derivative(target):
    x = draw(3, 8, dtype=F32).requires_grad_()
    _, scales = quantize(x, QuantSpec("int8"))
    with pytest.raises(NotImplementedError, match="quantize has no derivative"):
        scales.sum().backward()


X, FP8 = torch.zeros(4, 8, dtype=BF16), QuantSpec("fp8")
BAD = [
    (lambda: quantize([1.0], FP8), TypeError, "quantize: x is list; it must be a torch.Tensor"),
    (lambda: quantize(X.double(), FP8), TypeError, "quantize: x is torch.float64; allowed"),
    (lambda: quantize(X, "fp8"), TypeError, "quantize: spec is str; it must be a hipkittens.QuantSpec"),
    (lambda: quantize(X[0, 0], FP8), ValueError, "quantize: x has shape (); it needs at least 1 dimension"),
    (lambda: quantize(X[:, :0], FP8), ValueError, "quantize: x has shape (4, 0); its rows need 1 element"),
    (lambda: quantize(X[:, :7], QuantSpec("mxfp4")), ValueError, "rows of x have 7 elements; mxfp4 has two in a byte"),
    (lambda: quantize(X, FP8, torch.ones(1)), ValueError, "quantize: scale has shape (1,) and granularity is 'row'"),
    (lambda: quantize(X, QuantSpec("fp8", "tensor"), torch.ones(2)), ValueError, "quantize: scale has shape (2,)"),
    (lambda: quantize(X, QuantSpec("fp8", "tensor"), torch.ones(1).half()), TypeError, "quantize: scale is torch.float16"),
    (lambda: QuantSpec("e4m3"), ValueError, "QuantSpec: format is 'e4m3'; allowed: 'fp8', 'bf8', 'int8', 'mxfp8', 'mxfp4'"),
    (lambda: QuantSpec("fp8", 16), ValueError, "granularity is 16; allowed with 'fp8': 'tensor', 'row', 32, 64, 128, (128, 128)"),
    (lambda: QuantSpec("fp8", (64, 128)), ValueError, "granularity is (64, 128); allowed with 'fp8'"),
    (lambda: QuantSpec("fp8", BLOCK, layout="columns"), ValueError, "layout is 'columns'; allowed with 'fp8' and granularity (128, 128): 'rows'"),
    (lambda: quantize(X[0], QuantSpec("fp8", BLOCK)), ValueError, "x has shape (8,); blocks need a matrix"),
    (lambda: quantize(X, FP8, smooth=[1.0]), TypeError, "smooth is list"),
    (lambda: quantize(X, FP8, smooth=X[0]), TypeError, "smooth is torch.bfloat16; allowed: torch.float32"),
    (lambda: quantize(X, FP8, smooth=X.float()), ValueError, "smooth has shape (4, 8); it must be (8,) without smooth_ids"),
    (lambda: quantize(X, FP8, smooth=X[0].float(), smooth_ids=X[:, 0].int()), ValueError, "it must be (experts, 8) with smooth_ids"),
    (lambda: quantize(X, FP8, smooth_ids=X[:, 0].int()), ValueError, "there are smooth_ids and no smooth"),
    (lambda: quantize(X, FP8, smooth=X.float(), smooth_ids=X[:, 0]), TypeError, "smooth_ids is torch.bfloat16; allowed: torch.int32, torch.int64"),
    (lambda: quantize(X, FP8, smooth=X.float(), smooth_ids=X.int()), ValueError, "smooth_ids has shape (4, 8); it must be that of the codes without its last dimension, (4,)"),
    (lambda: quantize(X, FP8, entries=X[:, 0]), TypeError, "entries is torch.bfloat16; allowed: torch.int32"),
    (lambda: quantize(X, FP8, entries=X.int()), ValueError, "x has shape (4, 8) and entries (4, 8); entries number the rows of a matrix"),
    (lambda: quantize(X, FP8, entries=X[:, 0].int(), choices=0), ValueError, "choices is 0; it must be a whole number, 1 or more"),
    (lambda: quantize(X, FP8, choices=2), ValueError, "choices is 2 and there are no entries"),
    (lambda: quantize(X, FP8, places=torch.zeros(4, 1, dtype=torch.int32)), ValueError, "places has shape (4, 1); it needs (4, 1), the row of each choice of x, and entries"),
    (lambda: quantize(X, FP8, entries=X[:, 0].int(), places=X[:3, :1].int()), ValueError, "places has shape (3, 1); it needs (4, 1)"),
    (lambda: quantize(X, FP8, entries=X[:, 0].int(), places=X[:, :1]), TypeError, "places is torch.bfloat16; allowed: torch.int32"),
    (lambda: quantize(X, QuantSpec("fp8", BLOCK), entries=X[:, 0].int()), ValueError, "there are entries and granularity is (128, 128)"),
    (lambda: quantize(X, QuantSpec("fp8", "tensor"), smooth=X[0].float()), ValueError, "there is smooth and granularity is 'tensor'"),
    (lambda: QuantSpec("mxfp4", 64), ValueError, "granularity is 64; allowed with 'mxfp4': 32"),
    (lambda: QuantSpec("fp8", scale_rule="ceil"), ValueError, "scale_rule is 'ceil'; allowed with 'fp8' and granularity 'row': 'maximum', 'round_up'"),
    (lambda: QuantSpec("fp8", 64, scale_rule="round_up"), ValueError, "allowed with 'fp8' and granularity 64: 'maximum'"),
    (lambda: QuantSpec("fp8", scale_rule="round_up", floor=1.0), ValueError, "floor is 1.0; scales that are powers of two have none"),
    (lambda: QuantSpec("fp8", rounding="away"), ValueError, "rounding is 'away'; allowed with 'fp8': 'even'"),
    (lambda: QuantSpec("fp8", layout="columns"), ValueError, "layout is 'columns'; allowed with 'fp8' and granularity 'row': 'rows'"),
    (lambda: QuantSpec("fp8", floor=-1.0), ValueError, "floor is -1.0; it must be 0 or more"),
    (lambda: QuantSpec("mxfp4", floor=1.0), ValueError, "floor is 1.0; MX formats have none"),
    (lambda: dequantize(X, X, QuantSpec("mxfp4", layout="shuffled"), BF16), ValueError, "dequantize: layout is 'shuffled'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")


NONE = (0.0, math.inf, 1.0, -1, 0, False)
BAD_OPERANDS = [
    (lambda op: op(X, None, None, None, None, None, None, 1, False, 6, -1, 0, *NONE), "code is 6; 0 .. 5 are allowed"),
    (lambda op: op(X, None, None, None, None, None, None, 1, False, 0, 48, 0, *NONE), "groups of 48; 32, 64 and 128 are allowed"),
    (lambda op: op(X, None, None, None, None, None, None, 1, False, 0, -1, 1, *NONE), "layouts of scales are for groups"),
    (lambda op: op(X, None, None, None, None, None, None, 1, False, 0, 32, 2, *NONE), "only powers of two are shuffled"),
    (lambda op: op(X[:, :7], None, None, None, None, None, None, 1, False, 3, 32, 0, *NONE), "rows of e2m1 need an even number of elements"),
    (lambda op: op(X[0], None, None, None, None, None, None, 1, False, 0, -2, 0, *NONE), "blocks need rows and columns"),
    (lambda op: op(X, None, None, X[:, 0].int(), None, None, None, 1, False, 0, -1, 0, *NONE), "ids are of the rows of smooth, which is not there"),
    (lambda op: op(X, None, X[:, :4].float(), None, None, None, None, 1, False, 0, -1, 0, *NONE), "smooth needs to be float32 of rows as long as"),
    (lambda op: op(X, None, X.float(), X[:, 0].long(), None, None, None, 1, False, 0, -1, 0, *NONE), "ids need to be int32 of the shape of codes"),
    (lambda op: op(X, None, X.float(), None, None, None, None, 1, False, 0, 0, 0, *NONE), "factors are for scales of rows and of groups"),
    (lambda op: op(X, torch.ones(1), None, None, None, None, None, 1, False, 0, -1, 0, *NONE), "scale needs to be one float32"),
    (lambda op: op(torch.zeros(1, dtype=BF16).expand(2**25, 8), None, None, None, None, None, None, 1, False, 0, -1, 0, *NONE), "33554432 rows with a scale each"),
    (lambda op: op(X, None, None, None, X.int(), None, None, 1, False, 0, -1, 0, *NONE), "entries need to be int32 of one dimension"),
    (lambda op: op(X[None], None, None, None, X[:, 0].int(), None, None, 1, False, 0, -1, 0, *NONE), "entries are of x with two dimensions"),
    (lambda op: op(X, None, None, None, X[:, 0].int(), None, None, 2**30, False, 0, -1, 0, *NONE), "less than 2^31 choices of its rows"),
    (lambda op: op(X, None, None, None, X[:, 0].int(), None, None, 1, False, 0, 0, 0, *NONE), "entries are of rows with scales of their own"),
    (lambda op: op(X, None, None, None, None, X[:, :1].int(), None, 1, False, 0, -1, 0, *NONE), "places are of the choices of each row of x"),
    (lambda op: op(X, None, None, None, X[:, 0].int(), X[:, :1], None, 1, False, 0, -1, 0, *NONE), "places need to be int32"),
    (lambda op: op(X, None, None, None, None, None, None, 0, False, 0, -1, 0, *NONE), "choices is 0; 1 or more are allowed"),
    (lambda op: op(X, None, None, None, X[:, 0].int(), None, None, 1, True, 0, -1, 0, *NONE), "codes of tokens need entries and places"),
    (lambda op: op(X.float(), None, None, None, X[:, 0].int(), X[:, :1].int(), None, 1, True, 0, -1, 0, *NONE), "codes of tokens are for 16-bit rows"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call(torch.ops.hipkittens.quantize)
    assert message in str(caught.value)


@pytest.mark.slow
def test_more_than_four_gibibytes():
    storage = torch.zeros(1 + 2**31 + 64, dtype=BF16)
    x = torch.as_strided(storage, (2, 64), (2**31, 1), 1)
    x.copy_(draw(2, 64))
    with hipkittens.simulate("gfx942"):
        for spec in (FP8, QuantSpec("int8", 32), QuantSpec("fp8", "tensor")):
            for far, near in zip(quantize(x, spec), quantize(x.clone(), spec), strict=True):
                assert torch.equal(far.float(), near.float())
