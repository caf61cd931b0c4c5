# SPDX-License-Identifier: MIT
"""hipkittens.scaled_matmul: products of quantized operands compared with float64."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import hipkittens
from hipkittens import QuantSpec, quantize, scaled_matmul
from hipkittens.quantization import dtype_of

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32, I8 = torch.bfloat16, torch.float16, torch.float32, torch.int8
RMS = {BF16: 2.5e-3, F16: 4e-4, F32: 1e-6}
PAIRS = (("fp8", "fp8"), ("bf8", "fp8"), ("fp8", "bf8"), ("int8", "int8"))
ACTIVATIONS = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def codes(rows, columns, format, seed=0):
    if format == "int8":
        return torch.randint(-128, 128, (rows, columns), generator=generator(seed)).to(I8)
    return torch.randn(rows, columns, generator=generator(seed)).to(dtype_of(format, torch.device("cpu")))


def factors(*shape, seed=7):
    return torch.rand(shape, generator=generator(seed)) + 0.5


def exact(a, w, scale_a, scale_b, bias=None, activation=None):
    product = (a.double() * scale_a.double()) @ (w.t().double() * scale_b.double())
    if bias is not None:
        product = product + bias.double()
    return product if activation is None else ACTIVATIONS[activation](product)


def rms_error(ours, reference):
    return ((ours.double() - reference).norm() / reference.norm()).item()


def check(formats, m, n, k, out_dtype, *, by_rows=True, bias=None, activation=None):
    a, w = codes(m, k, formats[0]), codes(n, k, formats[1], 1)
    scale_a, scale_b = (factors(m, 1), factors(1, n)) if by_rows else (factors(), factors(1, seed=8))
    y = scaled_matmul(a, w.t(), scale_a, scale_b, bias=bias, activation=activation, out_dtype=out_dtype)
    assert y.dtype == out_dtype and y.shape == (m, n)
    expected = exact(a, w, scale_a, scale_b, bias, activation)
    # With few numbers, half a unit in the last place may be more.
    assert rms_error(y, expected) <= RMS[out_dtype] or torch.equal(y, expected.to(out_dtype))


# A covering set of check 12(b) 1: each pair of extents, and of formats with each.
SHAPES = (
    (1, 1, 16), (1, 17, 2880), (1, 128, 160), (1, 257, 128), (17, 1, 160), (17, 17, 128), (17, 128, 2880), (17, 257, 16),
    (128, 1, 128), (128, 17, 16), (128, 128, 128), (128, 257, 160), (257, 1, 2880), (257, 17, 160), (257, 128, 16),
    (257, 257, 128),
)  # fmt: skip


@pytest.mark.parametrize(("case", "shape"), tuple(enumerate(SHAPES)))
def test_products(target, case, shape):
    check(PAIRS[case % 4], *shape, BF16)
    check(PAIRS[(case + 1 + case // 4) % 4], *shape, F32, by_rows=case % 2 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("formats", PAIRS)
def test_every_shape(target, formats):
    for m, n, k in itertools.product((1, 17, 128, 257), (1, 17, 128, 257), (16, 128, 160, 2880)):
        for out_dtype in (BF16, F32):
            check(formats, m, n, k, out_dtype)


@pytest.mark.parametrize("formats", PAIRS)
@pytest.mark.parametrize("shape", [(2, 3, 1), (7, 13, 17), (255, 33, 131), (1, 257, 515)])
def test_rows_that_begin_anywhere(target, formats, shape):
    check(formats, *shape, BF16 if formats[0] == "int8" else F16)  # int8 sums exceed its largest value
    m, n, k = shape
    a, w = codes(m, k + 3, formats[0])[:, 1 : k + 1], codes(n, k + 2, formats[1], 1)[:, 2:]
    one = torch.ones(())
    assert rms_error(scaled_matmul(a, w.t(), one, one, out_dtype=F32), exact(a, w, one, one)) <= RMS[F32]


def test_tiles_that_the_plan_takes_for_larger_products(target):
    for formats in PAIRS:
        check(formats, 300, 516, 272, BF16)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(33, 65, 64), (16, 64, 4096)])  # the latter in parts of K
def test_bias_and_activation(target, activation, shape):
    n = shape[1]
    for formats, out_dtype, bias_dtype in (
        (PAIRS[0], F32, F32),
        (PAIRS[0], BF16, BF16),
        (PAIRS[3], F32, F16),
        (PAIRS[3], F16, None),
    ):
        bias = None if bias_dtype is None else torch.randn(n, generator=generator(3)).to(bias_dtype)
        scale = factors() / 64 / (40 if formats[0] == "int8" else 1)
        a, w = codes(shape[0], shape[2], formats[0]), codes(n, shape[2], formats[1], 1)
        y = scaled_matmul(a, w.t(), scale, scale, bias=bias, activation=activation, out_dtype=out_dtype)
        assert rms_error(y, exact(a, w, scale, scale, bias, activation)) <= RMS[out_dtype]


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (17, 33, 515), (128, 128, 128), (64, 64, 8192), (257, 130, 160)]
)
def test_integers_are_exact(target, shape):
    m, n, k = shape
    a, w = codes(m, k, "int8"), codes(n, k, "int8", 1)
    if k > 1000:  # the largest sums
        a.fill_(-128), w[::2].fill_(-128)
    y = scaled_matmul(a, w.t(), None, None, out_dtype=torch.int32)
    assert torch.equal(y.long(), a.long() @ w.long().t())


def test_8_bit_floats_of_whole_numbers_are_exact(target):
    a, w = (torch.randint(-8, 9, (rows, 640), generator=generator(rows)) for rows in (70, 132))
    for left, right in PAIRS[:3]:
        # e5m2 has three significant bits.
        x, y = (
            (value // 4 * 4 if format == "bf8" else value).float().to(dtype_of(format, torch.device("cpu")))
            for value, format in ((a, left), (w, right))
        )
        one = torch.ones(())
        assert torch.equal(
            scaled_matmul(x, y.t(), one, one, out_dtype=F32).double(), x.double() @ y.double().t()
        )


def test_scales_over_forty_powers_of_two(target):
    m, n, k = 33, 70, 160
    a, w = codes(m, k, "fp8"), codes(n, k, "fp8", 1)
    scale_a = torch.ldexp(factors(m, 1), torch.randint(-20, 21, (m, 1), generator=generator(2)))
    scale_b = torch.ldexp(factors(1, n), torch.randint(-20, 21, (1, n), generator=generator(3)))
    y = scaled_matmul(a, w.t(), scale_a, scale_b, out_dtype=F32)
    right = exact(a, w, scale_a, scale_b)
    size = exact(a.float().abs(), w.float().abs(), scale_a, scale_b)
    assert ((y.double() - right).abs() <= 1e-6 * size).all()


@pytest.mark.parametrize("k", [64, 4096])
def test_zero_and_nan_scales(target, k):
    a, w = codes(20, k, "fp8"), codes(40, k, "fp8", 1)
    scale_a, scale_b = factors(20, 1), factors(1, 40)
    scale_a[3], scale_b[0, 5] = 0, torch.nan
    y = scaled_matmul(a, w.t(), scale_a, scale_b)
    assert y[:, 5].isnan().all()
    y[:, 5] = 0
    assert (y[3] == 0).all() and y.isfinite().all()
    codes_with_nan = a.clone()
    codes_with_nan[2, 7] = torch.nan
    y = scaled_matmul(codes_with_nan, w.t(), factors(), factors())
    assert y[2].isnan().all() and y[3:].isfinite().all()


def test_strides(target):
    m, n, k = 20, 36, 64
    a, w, one = codes(m, k, "int8"), codes(n, k, "int8", 1), torch.ones(())
    right = scaled_matmul(a, w.t(), one, one)
    wide = torch.full((m, k + 12), 99, dtype=I8)
    wide[:, :k] = a
    for left in (a.t().contiguous().t(), wide[:, :k], a.flip(0).contiguous().flip(0)):
        assert torch.equal(scaled_matmul(left, w.t(), one, one), right)
    for other in (w.t().contiguous(), torch.cat((w, w))[::2].t()):
        assert scaled_matmul(a, other, one, one).shape == (m, n)
    assert torch.equal(scaled_matmul(a, w.t().contiguous(), one, one), right)
    assert torch.equal(scaled_matmul(a[:1].expand(m, k), w.t(), one, one), right[:1].expand(m, n))
    rows = factors(m, 3)[:, 1:2]
    assert torch.equal(
        scaled_matmul(a, w.t(), rows, one), scaled_matmul(a, w.t(), rows.contiguous(), one.reshape(1))
    )


def test_empty(target):
    one, bias = torch.ones(()), torch.randn(5, generator=generator())
    a = torch.zeros(4, 0, dtype=I8)
    y = scaled_matmul(a, torch.zeros(5, 0, dtype=I8).t(), one, one, bias=bias, activation="relu")
    assert torch.equal(y, F.relu(bias).bfloat16().expand(4, 5))
    assert scaled_matmul(codes(0, 16, "fp8"), codes(5, 16, "fp8").t(), one, one).shape == (0, 5)
    assert scaled_matmul(codes(3, 16, "fp8"), codes(0, 16, "fp8").t(), one, one).shape == (3, 0)


def test_what_quantize_makes(target):
    x, weight = (torch.randn(rows, 320, generator=generator(rows)).to(BF16) for rows in (40, 72))
    for spec in (QuantSpec("fp8"), QuantSpec("fp8", "tensor"), QuantSpec("int8")):
        (a, scale_a), (w, scale_b) = quantize(x, spec), quantize(weight, spec)
        y = scaled_matmul(a, w.t(), scale_a, scale_b.t())
        assert rms_error(y, x.double() @ weight.double().t()) < 0.05


def test_bad_input(target):
    a, b, one = codes(4, 32, "fp8"), codes(8, 32, "fp8", 1).t(), torch.ones(())
    rows, columns = factors(4, 1), factors(1, 8)
    other = torch.float8_e4m3fn if target == "gfx942" else torch.float8_e4m3fnuz
    bf8 = codes(4, 32, "bf8")
    huge = torch.zeros(1, 1, dtype=I8).expand(4, 131072)
    for arguments, options, error, message in [
        ((a.float(), b, one, one), {}, TypeError, r"a is torch.float32; allowed: torch.int8, 8-bit floats"),
        ((a.float().to(other), b, one, one), {}, TypeError, rf"a is {other}; {target} multiplies"),
        ((bf8, codes(8, 32, "bf8").t(), one, one), {}, TypeError, "both e4m3, one e4m3 and one e5m2"),
        ((a.float().to(I8), b, one, one), {}, TypeError, "a is torch.int8 and b is torch.float8"),
        ((a[0], b, one, one), {}, ValueError, r"a has shape \(32,\); it needs 2 dimensions"),
        ((a[:, :16], b, one, one), {}, ValueError, "a has 16 columns and b has 32 rows"),
        ((a, b, None, one), {}, ValueError, "scale_a is None; give the factors"),
        ((a, b, one.double(), one), {}, TypeError, "scale_a is torch.float64; allowed with scaling 'tensor'"),
        ((a, b, factors(3, 1), one), {}, ValueError, r"scale_a has shape \(3, 1\), which no recipe has"),
        ((a, b, rows, factors(8, 1)), {}, ValueError, r"scale_b has shape \(8, 1\), which no recipe has"),
        ((a, b, rows, columns), {"recipe": "tensor"}, ValueError, "scaling 'tensor' needs one element"),
        ((a, b, rows, columns), {"recipe": "column"}, ValueError, "recipe is 'column'; allowed: 'tensor'"),
        ((a, b, rows, columns), {"swizzle": "32_4_4"}, ValueError, "swizzle is '32_4_4' and the recipe .*; allowed: None"),
        ((a, b, one, one), {"activation": "tanh"}, ValueError, "activation is 'tanh'; allowed: None"),
        ((a, b, one, one), {"out_dtype": torch.int32}, TypeError, "out_dtype is torch.int32; allowed"),
        ((a, b, one, one), {"bias": torch.zeros(4)}, ValueError, r"bias has shape \(4,\); it must be \(8,\)"),
        ((a, b, one, one), {"bias": torch.zeros(8).double()}, TypeError, "bias is torch.float64; allowed"),
        ((a, b, one.clone().requires_grad_(), one), {}, ValueError, "scale_a requires a gradient"),
        ((a, b, one, one), {"bias": torch.zeros(8, requires_grad=True)}, ValueError, "bias requires a gradient"),
        ((huge, huge.t(), one, one), {}, ValueError, "a has 131072 columns; sums of int8 products"),
        ((I8, b, one, one), {}, TypeError, "a is dtype; it must be a torch.Tensor"),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            scaled_matmul(*arguments, **options)
    integers = codes(4, 32, "int8"), codes(8, 32, "int8").t()
    with pytest.raises(
        ValueError, match=r"out_dtype is torch.int32, the sums themselves, and scale_a is given"
    ):
        scaled_matmul(*integers, one, None, out_dtype=torch.int32)
    with torch.no_grad():
        assert scaled_matmul(a, b, one.clone().requires_grad_(), one).shape == (4, 8)


@pytest.mark.parametrize(
    ("recipe", "shape_a", "shape_b"),
    [(("row", "1x32"), (4, 1), (5, 8)), (("row", "128x128"), (4, 2), (2, 1))],
)
def test_recipes_without_kernels_are_refused_by_name(target, recipe, shape_a, shape_b):
    a, b = codes(4, 160, "int8"), codes(8, 160, "int8", 1).t()
    with pytest.raises(ValueError, match=r"there is no kernel for the recipe \('row', '1(x32|28x128)'\)"):
        scaled_matmul(a, b, factors(*shape_a), factors(*shape_b), recipe=recipe)


def test_compile_and_opcheck(target):
    a, w, scale_a, scale_b = codes(20, 64, "fp8"), codes(48, 64, "fp8", 1), factors(20, 1), factors(1, 48)
    bias = torch.randn(48, generator=generator(2))

    def block(a, w):
        return scaled_matmul(a, w.t(), scale_a, scale_b, bias=bias, activation="silu").float() * 2

    assert torch.equal(torch.compile(block, fullgraph=True, backend="aot_eager")(a, w), block(a, w))
    torch.library.opcheck(
        torch.ops.hipkittens.scaled_gemm.default,
        (
            a.view(torch.uint8),
            w.view(torch.uint8),
            scale_a.reshape(-1),
            scale_b.reshape(-1),
            bias,
            0,
            0,
            1,
            1,
            0,
            -1,
            BF16,
        ),
    )
    with FlopCounterMode(display=False) as counter:
        scaled_matmul(a, w.t(), scale_a, scale_b)
    assert counter.get_total_flops() == 2 * 20 * 48 * 64
    answer = hipkittens.supported("scaled_matmul", a.float(), w.t(), scale_a, scale_b)
    assert not answer and "a is torch.float32" in answer.reason


def test_in_torch(monkeypatch):
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    a, w = codes(5, 40, "int8"), codes(7, 40, "int8", 1)
    assert torch.equal(
        scaled_matmul(a, w.t(), None, None, out_dtype=torch.int32).long(), a.long() @ w.long().t()
    )
    y = scaled_matmul(a, w.t(), factors(5, 1), factors(1, 7), activation="gelu", out_dtype=F32)
    assert rms_error(y, exact(a, w, factors(5, 1), factors(1, 7), activation="gelu")) < 1e-6
