# SPDX-License-Identifier: MIT
"""hipkittens.aiter's GEMMs compared with float64 products of the dequantized operands."""

import contextlib
import inspect

import pytest
import torch

import hipkittens
from hipkittens import _simulator, aiter
from tests.oracles.aiter.formats import FLOAT4, float4_values, float8, tiled, tiled_scales

BF16, F16, F32, I32 = torch.bfloat16, torch.float16, torch.float32, torch.int32
# Root mean square of the error over that of the result: one rounding to 16 bits, and sums in float32.
BAR = {BF16: 2.5e-3, F16: 4e-4, F32: 1e-6}
SIZES = [(1, 48, 160), (17, 130, 288), (257, 72, 160), (17, 144, 2880)]
TESTED = set()
# Names and arguments from AITER's main branch of August 2026, which the pinned version lacks.
NEWER = {
    "gemm_afp4wfp4_preshuffle": "x_fp4 w_preshuf x_scales w_scales dtype y config skip_reduce",
    "gemm_a16wfp4": "x w w_scales atomic_add dtype y config",
    "gemm_a16wfp4_preshuffle": "x w w_scales prequant dtype y config skip_reduce",
    "batched_gemm_a16wfp4": "x w w_scales dtype y config transpose_bm prequant y_scale",
    "fused_gemm_afp4wfp4_a16w16": "x_fp4 w_fp4 x_fp4_scale w_fp4_scale x_bf16 w_bf16 is_fp4_preshuffled bias_fp4 bias_bf16 dtype "
    "y_fp4 y_bf16 skip_reduce config use_aot",
    "fused_gemm_a8w8_blockscale_mul_add": "x w x_scales w_scales a b dtype y config fuse_type",
    "fused_gemm_afp4wfp4_mul_add": "x w x_scales w_scales a b dtype y config fuse_type",
    "fused_gemm_afp4wfp4_preshuffle_add_mul": "x w x_scales w_scales a b dtype y config use_aot fuse_type",
    "fused_gemm_a8w8_blockscale_split_cat": "x w y x_scale w_scale S1 S2 dtype config",
    "fused_gemm_a8w8_blockscale_preshuffle_split_cat": "x w y x_scale w_scale S1 S2 dtype config is_x_scale_transposed",
    "fused_gemm_afp4wfp4_split_cat": "x w y x_scale w_scale S1 S2 dtype config",
    "fused_gemm_afp4wfp4_preshuffle_split_cat": "x w y x_scale w_scale S1 S2 dtype config",
}


def of(*names):
    """Declare the names that a test covers."""
    TESTED.update(names)
    return lambda test: test


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


@pytest.fixture
def gfx950():
    with hipkittens.simulate("gfx950", checks="all") as simulation:
        yield
    assert simulation.findings == []


def generator(seed):
    return torch.Generator().manual_seed(seed)


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=generator(seed)).to(dtype)


@contextlib.contextmanager
def nothing_launched(target):
    with hipkittens.simulate(target):
        _simulator.record_launches(True)
        try:
            yield
            assert not _simulator.recorded_launches()
        finally:
            _simulator.record_launches(False)


def rms(out, reference):
    assert out.shape == reference.shape and not out.isnan().any()
    return ((out.double() - reference).square().mean() / reference.square().mean()).sqrt().item()


def check(out, reference, dtype=BF16):
    assert out.dtype == dtype
    assert rms(out, reference) <= BAR[dtype]


def place(*shape, dtype=BF16):
    """A caller's output tensor: not contiguous, and full of NaN."""
    wide = torch.full((*shape[:-1], shape[-1] + 3), torch.nan, dtype=dtype)
    return wide[..., : shape[-1]]


def blocks(target, rows, k, of_rows, seed, exponents=6):
    """e4m3 values, a float32 scale for each of_rows by 128 of them, and their dequantized values in float64."""
    codes = draw(rows, k, dtype=F32, seed=seed).to(float8(target))
    shape = (-(-rows // of_rows), -(-k // 128))
    powers = torch.randint(-exponents, exponents + 1, shape, generator=generator(seed + 1))
    scales = torch.ldexp(1 + torch.rand(shape, generator=generator(seed + 2)), powers)
    whole = scales.double().repeat_interleave(of_rows, 0)[:rows].repeat_interleave(128, 1)[:, :k]
    return codes, scales, codes.double() * whole


def float4(rows, k, seed, exponents=6):
    """e2m1 values, two per byte, an e8m0 scale for each 32, and their dequantized values in float64."""
    codes = torch.randint(0, 256, (rows, k // 2), generator=generator(seed)).to(torch.uint8)
    low, high = 127 - exponents, 128 + exponents
    scales = torch.randint(low, high, (rows, k // 32), generator=generator(seed + 1)).to(torch.uint8)
    return codes, scales, float4_values(codes, scales)


def in_float4(x):
    """Values of x in MXFP4 as AITER's Triton kernels quantize it: the exponent of the largest magnitude of 32 less 2, one more from a
    mantissa of 1.75 on, and half-way cases away from zero."""
    groups = x.double().unflatten(-1, (-1, 32))
    largest = groups.abs().amax(-1, keepdim=True)
    exponent = largest.log2().floor()
    exponent = exponent + (largest >= 1.75 * torch.exp2(exponent)) - 2
    size = (groups / torch.exp2(exponent)).abs()
    code = torch.bucketize(size, (FLOAT4[1:8] + FLOAT4[:7]) / 2, right=True)
    return (FLOAT4[code] * groups.sign() * torch.exp2(exponent)).flatten(-2)


def in_float8(x, target):
    """Values of x in e4m3 with a scale for each 128 of a row."""
    dtype = float8(target)
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[-1] % 128)).unflatten(-1, (-1, 128))
    scales = padded.abs().amax(-1, keepdim=True).clamp_min(1e-10) / torch.finfo(dtype).max
    codes = (padded * (1 / scales)).to(dtype)
    return (codes.double() * scales.double()).flatten(-2)[..., : x.shape[-1]]


def panels(w):
    """A shuffled weight in the shape that Triton kernels expect."""
    return tiled(w).view(w.shape[0] // 16, w.shape[1] * 16)


def test_arguments_are_those_of_the_main_branch():
    for name, arguments in NEWER.items():
        parameters = inspect.signature(getattr(aiter, name)).parameters
        assert list(parameters) == arguments.split(), name
        assert parameters["dtype"].default == BF16


@of("gemm_a16w16", "gemm_a16w16_atomic")
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_16_bits(target, m, n, k, dtype):
    x, w = draw(m, k, dtype=dtype), draw(n, k, dtype=dtype, seed=1)
    bias, exact = draw(n, dtype=dtype, seed=2) * 8, x.double() @ w.double().T
    check(aiter.gemm_a16w16(x, w), exact)
    check(aiter.gemm_a16w16(x, w, bias, dtype, None, {"NUM_KSPLIT": 4}), exact + bias.double(), dtype)
    check(aiter.gemm_a16w16_atomic(x, w, dtype, config={"NUM_KSPLIT": 2}), exact, dtype)
    for function in (aiter.gemm_a16w16, aiter.gemm_a16w16_atomic):
        y = place(m, n, dtype=F32)
        assert function(x, w, y=y) is y
        check(y, exact, F32)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "silu_exp2", "relu"])
def test_activations_of_products(target, activation):
    x, w, bias = draw(17, 96), draw(40, 96, seed=1) / 8, draw(40, seed=2)
    function = {
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda total: torch.nn.functional.gelu(total, approximate="tanh"),
        "silu": torch.nn.functional.silu,
        "silu_exp2": torch.nn.functional.silu,
        "relu": torch.relu,
    }[activation]
    exact = function(x.double() @ w.double().T + bias.double())
    check(aiter.gemm_a16w16(x, w, bias, activation=activation, skip_reduce=True), exact)


@of("gemm_a8w8_bpreshuffle", "gemm_a8w8_ASM")
@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 32, 160), (17, 160, 288), (257, 64, 2880)])
def test_shuffled_weights_of_8_bits(target, m, n, k, codes):
    dtype = torch.int8 if codes == "int8" else float8(target)
    x, w = ((draw(rows, k, dtype=F32, seed=rows) * 30).to(dtype) for rows in (m, n))
    x_scale, w_scale = (torch.rand(rows, 1, generator=generator(rows)) / 8 for rows in (m, n))
    bias = draw(n, dtype=F32) * 100
    exact = (x.double() @ w.double().T) * x_scale.double() * w_scale.double().T
    check(aiter.gemm_a8w8_bpreshuffle(x, tiled(w), x_scale, w_scale), exact)
    check(aiter.gemm_a8w8_ASM(x, tiled(w, 32), x_scale, w_scale, bias, F16), exact + bias.double(), F16)
    y = place(m, n, dtype=F32)
    assert aiter.gemm_a8w8(x, w, x_scale, w_scale, bias, y=y) is y
    check(y, exact + bias.double(), F32)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 48, 160), (257, 144, 288)])
def test_blocks_in_place(target, m, n, k):
    (x, x_scale, left), (w, w_scale, right) = blocks(target, m, k, 1, 1), blocks(target, n, k, 128, 4)
    columns = x_scale.t().contiguous()
    for operands, shuffled in (((x, w, x_scale, w_scale), False), ((x, tiled(w), columns, w_scale), True)):
        y = place(m, n, dtype=F32)
        assert aiter.gemm_a8w8_blockscale(*operands, BF16, shuffled, y=y, skip_reduce=True) is y
        check(y, left @ right.T, F32)


@of("batched_gemm_bf16", "batched_gemm_bf16_CK")
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_batches_of_16_bits(target, dtype):
    x, w, bias = (
        draw(3, 17, 160, dtype=dtype),
        draw(3, 40, 160, dtype=dtype, seed=1),
        draw(3, 1, 40, dtype=dtype),
    )
    exact = x.double() @ w.double().mT
    check(aiter.batched_gemm_bf16(x, w), exact)
    check(aiter.batched_gemm_bf16_CK(x, w, bias, F16, 2), exact + bias.double(), F16)
    y = place(3, 17, 40)
    assert aiter.batched_gemm_bf16(x, w, bias, YQ=y) is y
    check(y, exact + bias.double())


@of("gemm_a16w8_blockscale")
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("pre_quant", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_weights_of_8_bits(target, m, n, k, pre_quant, dtype):
    x = draw(m, k, dtype=dtype)
    w, w_scale, right = blocks(target, n, k, 128, 1)
    exact = (in_float8(x, target) if pre_quant else x.double()) @ right.T
    check(aiter.gemm_a16w8_blockscale(x, w, w_scale, BF16, None, pre_quant), exact)
    y = place(m, n, dtype=F32)
    assert aiter.gemm_a16w8_blockscale(x, w, w_scale, y=y, pre_quant=pre_quant) is y
    assert rms(y, exact) <= 1e-5


def test_what_is_not_finite_with_weights_of_8_bits(target):
    """Scales that are powers of two leave nothing for the second part of a weight: a product with it would be NaN."""
    x, ones = draw(3, 128), torch.ones(16, 128).to(float8(target))
    x[1, 5] = torch.inf
    for dtype in (BF16, F16):
        y = aiter.gemm_a16w8_blockscale(x.to(dtype), ones, torch.full((1, 1), 0.5))
        assert (y[1] == torch.inf).all() and y[[0, 2]].isfinite().all()


@of("gemm_afp4wfp4", "gemm_afp4wfp4_preshuffled_scales")
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_4_bits(gfx950, m, n, k):
    (x, x_scales, left), (w, w_scales, right) = float4(m, k, 1), float4(n, k, 3)
    exact = left @ right.T
    y = aiter.gemm_afp4wfp4(x, w, x_scales, w_scales)
    check(y, exact)
    codes = x.view(torch.float4_e2m1fn_x2), w.view(torch.float4_e2m1fn_x2)
    bytes_ = x_scales.view(torch.float8_e8m0fnu), w_scales.view(torch.float8_e8m0fnu)
    assert torch.equal(aiter.gemm_afp4wfp4(*codes, *bytes_), y)
    tiles = tiled_scales(x_scales), tiled_scales(w_scales)
    shaped = [each.view(each.shape[0] // 32, -1) for each in tiles]
    assert torch.equal(aiter.gemm_afp4wfp4_preshuffled_scales(x, w, *shaped, BF16), y)
    for function, scales in (
        (aiter.gemm_afp4wfp4, (x_scales, w_scales)),
        (aiter.gemm_afp4wfp4_preshuffled_scales, tiles),
    ):
        into = place(m, n, dtype=F32)
        assert function(x, w, *scales, y=into) is into
        check(into, exact, F32)


@of("gemm_afp4wfp4_preshuffled_weight_scales", "gemm_afp4wfp4_preshuffle", "gemm_a4w4")
@pytest.mark.parametrize(("m", "n", "k"), [(1, 48, 192), (17, 160, 320), (33, 64, 256), (257, 48, 2880)])
def test_shuffled_weights_of_4_bits(gfx950, m, n, k):
    (x, x_scales, left), (w, w_scales, right) = float4(m, k, 1, 2), float4(n, k, 3, 2)
    exact, tiles = left @ right.T, (tiled_scales(x_scales), tiled_scales(w_scales))
    scales = (tiles[0] if m >= 32 else x_scales, tiles[1])
    for function in (aiter.gemm_afp4wfp4_preshuffled_weight_scales, aiter.gemm_afp4wfp4_preshuffle):
        check(function(x, panels(w), *scales), exact)
        y = place(m, n, dtype=F16)
        assert function(x, panels(w), *scales, y=y) is y
        check(y, exact, F16)
    out = torch.full((-(-m // 32) * 32, n), 7.0, dtype=BF16)
    assert aiter.gemm_a4w4(x, tiled(w), *tiles, out) is out
    check(out[:m], exact)
    assert (out[m:] == 7).all()
    out.fill_(torch.nan)
    aiter.gemm_a4w4(x, w, *tiles, out, None, 1.0, 0.0, False)
    check(out[:m], exact)


@of("gemm_afp4wfp4_pre_quant", "gemm_a16wfp4", "gemm_a16wfp4_preshuffle")
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 48, 192), (17, 160, 320), (257, 48, 2880)])
def test_weights_of_4_bits(gfx950, m, n, k, dtype):
    x, (w, w_scales, right) = draw(m, k, dtype=dtype), float4(n, k, 3)
    exact = in_float4(x) @ right.T
    y = aiter.gemm_afp4wfp4_pre_quant(x, w, w_scales)
    check(y, exact)
    assert torch.equal(aiter.gemm_a16wfp4(x, w, w_scales, True, BF16), y)
    assert torch.equal(aiter.gemm_a16wfp4_preshuffle(x, panels(w), tiled_scales(w_scales), True, BF16), y)
    for function in (aiter.gemm_afp4wfp4_pre_quant, aiter.gemm_a16wfp4):
        into = place(m, n, dtype=F32)
        assert function(x, w, w_scales, y=into) is into
        check(into, exact, F32)


@of("gemm_a8wfp4")
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_rows_of_8_bits_with_weights_of_4(gfx950, m, n, k):
    random = torch.Generator().manual_seed(m)
    x = torch.randn(m, k, generator=random).to(torch.float8_e4m3fn)
    x_scales = torch.ldexp(torch.ones(m, 1), torch.randint(-20, 21, (m, 1), generator=random))
    w, w_scales, right = float4(n, k, 3)
    exact = (x.double() * x_scales.double()) @ right.T
    for dtype in (BF16, F32):
        y = place(m, n, dtype=dtype)
        assert aiter.gemm_a8wfp4(x, w, y, x_scales, w_scales) is y
        check(y, exact, dtype)
    assert torch.equal(aiter.gemm_a8wfp4(x, w, None, x_scales, w_scales, F32), y)
    with pytest.raises(ValueError, match=rf"gemm_a8wfp4: x_scales has shape .{m},."):
        aiter.gemm_a8wfp4(x, w, y, x_scales[:, 0], w_scales)
    with pytest.raises(ValueError, match=r"they must be x .M, K. and w .N, K / 2."):
        aiter.gemm_a8wfp4(x[:, :-32], w, y, x_scales, w_scales)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 48, 192), (17, 160, 320), (257, 48, 2880)])
def test_rows_of_16_bits_with_weights_of_4(target, m, n, k):
    x, (w, w_scales, right) = draw(m, k), float4(n, k, 3)
    y = aiter.gemm_a16wfp4_preshuffle(x, panels(w), tiled_scales(w_scales), False)
    check(y, x.double() @ right.T)
    with pytest.raises(NotImplementedError, match=r"prequant is False and x is torch\.float16"):
        aiter.gemm_a16wfp4_preshuffle(x.half(), panels(w), tiled_scales(w_scales), False)


@of("batched_gemm_a8w8", "batched_gemm_a8w8_CK")
@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_batches_of_8_bits(target, m, n, k, codes):
    dtype = torch.int8 if codes == "int8" else float8(target)
    x, w = ((draw(3, rows, k, dtype=F32, seed=rows) * 30).to(dtype) for rows in (m, n))
    x_scale, w_scale = (torch.rand(shape, generator=generator(5)) for shape in ((3, m, 1), (3, 1, n)))
    bias = draw(3, 1, n, dtype=BF16) * 100
    exact = (x.double() @ w.double().mT) * x_scale.double() * w_scale.double()
    check(aiter.batched_gemm_a8w8(x, w, x_scale, w_scale), exact)
    check(aiter.batched_gemm_a8w8_CK(x, w, x_scale, w_scale, bias, BF16, 0), exact + bias.double())
    y = place(3, m, n, dtype=F32)
    assert aiter.batched_gemm_a8w8(x, w, x_scale[..., 0], w_scale[:, 0], bias, YQ=y) is y
    check(y, exact + bias.double(), F32)


PTGQ = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"


@of(PTGQ)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_batches_with_weights_of_8_bits(target, m, n, k):
    function = getattr(aiter, PTGQ)
    x, w = draw(3, m, k), draw(3, n, k, dtype=F32, seed=1).to(float8(target))
    bias, scales = draw(3, 1, n) * 8, torch.tensor([0.5, 3.0, 0.7])
    exact = in_float8(x, target) @ w.double().mT
    check(function(x, w, torch.tensor([0.75])), exact * 0.75)
    exact = exact * scales.double().view(3, 1, 1) + bias.double()
    check(function(x, w, scales, 128, bias, F32), exact, F32)
    y = place(m, 3, n)
    assert function(x.transpose(0, 1), w, scales, 128, bias, BF16, None, y, True, True) is y
    check(y, exact.transpose(0, 1))
    check(function(x.transpose(0, 1).contiguous(), w, scales, bias=bias, transpose_bm_in=True), exact)


@of("batched_gemm_afp4wfp4", "batched_gemm_afp4wfp4_pre_quant", "batched_gemm_a16wfp4")
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_batches_of_4_bits(gfx950, m, n, k):
    xs, ws = [float4(m, k, 10 * i) for i in range(3)], [float4(n, k, 10 * i + 5) for i in range(3)]
    (x, x_scales, left), (w, w_scales, right) = (
        [torch.stack(each) for each in zip(*some, strict=True)] for some in (xs, ws)
    )
    exact = left @ right.mT
    check(aiter.batched_gemm_afp4wfp4(x, w, x_scales, w_scales), exact)
    y = place(3, m, n, dtype=F32)
    assert aiter.batched_gemm_afp4wfp4(x, w, x_scales, w_scales, BF16, y) is y
    check(y, exact, F32)
    wide = draw(3, m, k)
    exact = in_float4(wide) @ right.mT
    check(aiter.batched_gemm_afp4wfp4_pre_quant(wide, w, w_scales), exact)
    y = place(m, 3, n)
    assert aiter.batched_gemm_a16wfp4(wide, w, w_scales, BF16, y, None, True) is y
    check(y, exact.transpose(0, 1))
    scale = torch.tensor([3.0])
    check(aiter.batched_gemm_a16wfp4(wide, w, w_scales, y_scale=scale), exact / 3)
    scale = (exact.abs().max() / 448).float()
    codes = aiter.batched_gemm_a16wfp4(wide, w, w_scales, torch.float8_e4m3fn, y_scale=scale)
    assert codes.dtype == torch.float8_e4m3fn
    assert rms(codes.double() * scale.double(), exact) <= 0.03


@of("fused_gemm_a8w8_blockscale_a16w16")
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_pairs_with_8_bits(target, m, n, k):
    (x, x_scale, left), (w, w_scale, right) = blocks(target, m, k, 1, 1), blocks(target, n, k, 128, 4)
    wide, other = draw(m, k), draw(33, k, seed=1)
    biases = draw(n, seed=2) * 64, draw(33, seed=3) * 8
    exact = left @ right.T, wide.double() @ other.double().T
    for given in ((None, None), biases):
        found = aiter.fused_gemm_a8w8_blockscale_a16w16(x, w, x_scale, w_scale, wide, other, *given)
        for mine, right_one, bias in zip(found, exact, given, strict=True):
            check(mine, right_one if bias is None else right_one + bias.double())
    y = place(m, n, dtype=F32), place(m, 33, dtype=F16)
    found = aiter.fused_gemm_a8w8_blockscale_a16w16(
        x, w, x_scale, w_scale, wide, other, y_fp8=y[0], y_bf16=y[1], skip_reduce=True
    )
    assert found[0] is y[0] and found[1] is y[1]
    check(y[0], exact[0], F32)
    check(y[1], exact[1], F16)


@of("fused_gemm_afp4wfp4_a16w16")
@pytest.mark.parametrize(("m", "n", "k"), [(1, 48, 192), (17, 160, 320), (33, 64, 2880)])
def test_pairs_with_4_bits(gfx950, m, n, k):
    (x, x_scales, left), (w, w_scales, right) = float4(m, k, 1), float4(n, k, 3)
    wide, other = draw(m, k), draw(33, k, seed=1)
    biases = draw(n, seed=2) * 64, draw(33, seed=3) * 8
    exact = left @ right.T, wide.double() @ other.double().T
    shuffled = panels(w), tiled_scales(x_scales) if m >= 32 else x_scales, tiled_scales(w_scales)
    for panel, operands in (
        (True, (x, shuffled[0], *shuffled[1:])),
        (False, (x, w, x_scales, w_scales)),
    ):
        y = place(m, n, dtype=F32), place(m, 33)
        found = aiter.fused_gemm_afp4wfp4_a16w16(*operands, wide, other, panel, *biases, BF16, *y)
        assert found[0] is y[0] and found[1] is y[1]
        check(y[0], exact[0] + biases[0].double(), F32)
        check(y[1], exact[1] + biases[1].double())
        found = aiter.fused_gemm_afp4wfp4_a16w16(*operands, wide, other, is_fp4_preshuffled=panel)
        check(found[0], exact[0])
        check(found[1], exact[1])


def factors(m, n):
    """Numbers, tensors of one element, and full tensors."""
    one, all_ = torch.tensor([1.5]), draw(m, n, seed=8) * 30
    return [
        (2.0, 5),
        (one, all_),
        (all_, 3.0),
        (all_, draw(m, n, seed=9)),
        (one, torch.tensor(2.0, dtype=BF16)),
    ]


@of("fused_gemm_a8w8_blockscale_mul_add")
@pytest.mark.parametrize(("m", "n", "k"), SIZES[:2])
def test_additions_to_8_bits(target, m, n, k):
    (x, x_scale, left), (w, w_scale, right) = blocks(target, m, k, 1, 1, 2), blocks(target, n, k, 128, 4, 2)
    check_mul_add(aiter.fused_gemm_a8w8_blockscale_mul_add, (x, w, x_scale, w_scale), left @ right.T)


def check_mul_add(function, operands, c):
    for a, b in factors(*c.shape):
        wide = [value.double() if isinstance(value, torch.Tensor) else value for value in (a, b)]
        check(function(*operands, a, b), wide[0] * c + wide[1])
        y = place(*c.shape, dtype=F32)
        assert function(*operands, a, b, BF16, y, fuse_type=1) is y
        check(y, wide[0] * wide[1] + c, F32)


@of("fused_gemm_afp4wfp4_mul_add", "fused_gemm_afp4wfp4_preshuffle_add_mul")
@pytest.mark.parametrize(("m", "n", "k"), [(17, 160, 320), (33, 64, 192)])
def test_additions_to_4_bits(gfx950, m, n, k):
    (x, x_scales, left), (w, w_scales, right) = float4(m, k, 1, 2), float4(n, k, 3, 2)
    c = left @ right.T
    check_mul_add(aiter.fused_gemm_afp4wfp4_mul_add, (x, w, x_scales, w_scales), c)
    shuffled = x, panels(w), tiled_scales(x_scales) if m >= 32 else x_scales, tiled_scales(w_scales)
    check_mul_add(aiter.fused_gemm_afp4wfp4_preshuffle_add_mul, shuffled, c)


def check_split_cat(function, operands, c, y, s1, s2):
    """The copy of y has the same bytes."""
    x, w, x_scale, w_scale = operands
    first, second = function(x, w, y, x_scale, w_scale, s1, s2)
    heads = c.view(y.shape[0], y.shape[1], s1 + s2)
    check(first[..., :s1], heads[..., :s1])
    assert torch.equal(first[..., s1:], y) and first.is_contiguous() and second.is_contiguous()
    check(second, heads[..., s1:])


@of("fused_gemm_a8w8_blockscale_split_cat", "fused_gemm_a8w8_blockscale_preshuffle_split_cat")
@pytest.mark.parametrize("m", [1, 17, 257])
def test_heads_of_8_bits(target, m):
    heads, s1, s2, s3, k = 3, 24, 40, 17, 160
    n = heads * (s1 + s2)
    (x, x_scale, left), (w, w_scale, right) = blocks(target, m, k, 1, 1), blocks(target, n, k, 128, 4)
    y = draw(m, 1, s3).expand(m, heads, s3)
    operands = (x, w, x_scale, w_scale)
    check_split_cat(aiter.fused_gemm_a8w8_blockscale_split_cat, operands, left @ right.T, y, s1, s2)
    columns = x_scale.t().contiguous().view(x_scale.shape)
    operands = (x, panels(w), columns, w_scale)
    check_split_cat(
        aiter.fused_gemm_a8w8_blockscale_preshuffle_split_cat, operands, left @ right.T, y, s1, s2
    )
    same = aiter.fused_gemm_a8w8_blockscale_preshuffle_split_cat(
        x, panels(w), y, x_scale, w_scale, s1, s2, is_x_scale_transposed=False
    )
    other = aiter.fused_gemm_a8w8_blockscale_split_cat(x, w, y, x_scale, w_scale, s1, s2)
    assert all(torch.equal(one, two) for one, two in zip(same, other, strict=True))


@of("fused_gemm_afp4wfp4_split_cat", "fused_gemm_afp4wfp4_preshuffle_split_cat")
@pytest.mark.parametrize("m", [1, 17, 257])
def test_heads_of_4_bits(gfx950, m):
    heads, s1, s2, s3, k = 3, 24, 40, 17, 320
    (x, x_scales, left), (w, w_scales, right) = float4(m, k, 1), float4(heads * (s1 + s2), k, 3)
    y = draw(m, heads, s3)
    check_split_cat(
        aiter.fused_gemm_afp4wfp4_split_cat, (x, w, x_scales, w_scales), left @ right.T, y, s1, s2
    )
    shuffled = x, panels(w), tiled_scales(x_scales) if m >= 32 else x_scales, tiled_scales(w_scales)
    check_split_cat(aiter.fused_gemm_afp4wfp4_preshuffle_split_cat, shuffled, left @ right.T, y, s1, s2)


SIZES_OF_GROUPS = torch.tensor([5, 0, 130, 1, 9], dtype=I32)


@of("gmm")
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_groups_of_rows(target, dtype):
    """Weights by rows and by columns; three rows are in no group."""
    m, k, n = 148, 160, 40
    lhs, rhs = draw(m, k, dtype=dtype), draw(5, k, n, dtype=dtype, seed=1)
    group = torch.repeat_interleave(torch.arange(5), SIZES_OF_GROUPS.long())
    bias = draw(5, n, dtype=dtype, seed=2) * 8
    exact = torch.zeros(m, n, dtype=torch.float64)
    exact[:145] = (lhs[:145].double().unsqueeze(1) @ rhs.double()[group]).squeeze(1)
    for weights in (rhs, rhs.mT.contiguous().mT):
        check(aiter.gmm(lhs, weights, SIZES_OF_GROUPS, dtype), exact, dtype)
    out = place(m, n)
    assert aiter.gmm(lhs, rhs, SIZES_OF_GROUPS, BF16, out, {"GRID_DIM": 8}, bias=bias) is out
    exact[:145] += bias.double()[group]
    check(out, exact)
    assert (out[145:] == 0).all()


@of("ptgmm", "nptgmm")
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_groups_of_columns(target, dtype):
    m, k, n = 145, 72, 40
    rows, rhs = draw(m, k, dtype=dtype), draw(m, n, dtype=dtype, seed=1)
    ends = SIZES_OF_GROUPS.cumsum(0).tolist()
    spans = list(zip([0, *ends], ends, strict=False))
    exact = torch.stack([rows[begin:end].double().T @ rhs[begin:end].double() for begin, end in spans])
    sums = torch.stack([rows[begin:end].double().sum(0) for begin, end in spans])
    for function in (aiter.ptgmm, aiter.nptgmm):
        for lhs in (rows.t(), rows.t().contiguous()):
            check(function(lhs, rhs, SIZES_OF_GROUPS, dtype), exact, dtype)
        before, bias_grad = draw(5, k, n, seed=2) * 8, torch.full((5, k), torch.nan)
        out = before.clone()
        options = {"bias_grad": bias_grad, "accumulate": True}
        assert function(rows.t(), rhs, SIZES_OF_GROUPS, BF16, out, **options) is out
        check(out, exact + before.double())
        check(bias_grad, sums, F32)
        out = place(5, k, n, dtype=F32)
        assert function(rows.t(), rhs, SIZES_OF_GROUPS, F32, out) is out
        check(out, exact, F32)


@of("deepgemm")
@pytest.mark.parametrize("dtype", [BF16, F16, "fp8"], ids=str)
def test_batches_of_which_some_rows_count(target, dtype):
    groups, m, n, k = 3, 37, 48, 160
    codes = float8(target) if dtype == "fp8" else dtype
    x, w = (draw(groups, rows, k, dtype=F32, seed=rows).to(codes) for rows in (m, n))
    counts, exact = torch.tensor([37, 0, 5], dtype=I32), x.double() @ w.double().mT
    scales = {}
    if dtype == "fp8":
        x_scale, w_scale = (torch.rand(groups, rows, 1, generator=generator(rows)) for rows in (m, n))
        scales = {"x_scale": x_scale, "w_scale": w_scale}
        exact = exact * x_scale.double() * w_scale.double().mT
    y = torch.full((groups, m, n), 7.0, dtype=BF16)
    assert aiter.deepgemm(x, tiled(w), y, counts, **scales) is y
    for mine, right, count in zip(y, exact, counts.tolist(), strict=True):
        assert (mine[count:] == 7).all()
        if count:
            check(mine[:count], right[:count])
    if dtype == "fp8":
        y.zero_()
        aiter.deepgemm(x, tiled(w), y, counts, None, w_scale)
        check(y[0], (exact / x_scale.double())[0])


@pytest.mark.parametrize("m", [0, 1])
def test_empty_products(gfx950, m):
    """No rows, and no columns of the weight."""
    n = 32 * (1 - m)
    x, w, x_scales, w_scales = (
        torch.zeros(shape, dtype=torch.uint8) for shape in ((m, 32), (n, 32), (m, 2), (n, 2))
    )
    wide, nothing = draw(m, 64), (m, n)
    assert aiter.gemm_afp4wfp4(x, w, x_scales, w_scales).shape == nothing
    assert aiter.gemm_a16wfp4(wide, w, w_scales).shape == nothing
    assert aiter.gemm_a16w16(wide, draw(n, 64)).shape == nothing
    codes, scale = torch.zeros(n, 64, dtype=torch.float8_e4m3fn), torch.ones(-(-n // 128), 1)
    for pre_quant in (False, True):
        assert aiter.gemm_a16w8_blockscale(wide, codes, scale, pre_quant=pre_quant).shape == nothing
    batch = getattr(aiter, PTGQ)(wide.expand(2, m, 64), codes.expand(2, n, 64), torch.ones(1))
    assert batch.shape == (2, *nothing)
    assert aiter.batched_gemm_afp4wfp4(x[None], w[None], x_scales[None], w_scales[None]).shape == (
        1,
        *nothing,
    )


X4, S4 = torch.zeros(17, 32, dtype=torch.uint8), torch.zeros(17, 2, dtype=torch.uint8)
W4, T4 = torch.zeros(48, 32, dtype=torch.uint8), torch.zeros(48, 2, dtype=torch.uint8)
X16, W16 = torch.zeros(17, 64, dtype=BF16), torch.zeros(48, 64, dtype=BF16)
W8, S8 = torch.zeros(48, 64).to(torch.float8_e4m3fn), torch.ones(1, 1)
SIZES4 = torch.tensor([10, 7], dtype=I32)
REFUSED = {
    "a y of another shape": (
        lambda: aiter.gemm_a16w16(X16, W16, y=torch.empty(48, 17)),
        ValueError, "gemm_a16w16: y has shape .48, 17.; the result's is .17, 48.",
    ),
    "operands that do not fit": (
        lambda: aiter.gemm_a16w16_atomic(X16, W16[:, :32]),
        ValueError, "gemm_a16w16_atomic: x has 64 columns and w 32 .*; they must be equal",
    ),
    "an activation without a kernel": (
        lambda: aiter.gemm_a16w16(X16, W16, activation="tanh"),
        ValueError, "activation is 'tanh'; allowed: None, 'gelu', ",
    ),
    "a bias of another length": (
        lambda: aiter.batched_gemm_bf16(X16[None], W16[None], torch.zeros(1, 1, 47)),
        ValueError, "batched_gemm_bf16: bias has shape .1, 1, 47.; it needs 48 elements",
    ),
    "scales of another shape": (
        lambda: aiter.gemm_afp4wfp4(X4, W4, S4, T4.t()),
        ValueError, "gemm_afp4wfp4: w_scales has shape .2, 48.; it must be .48, 2.",
    ),
    "shuffled scales that are too few": (
        lambda: aiter.gemm_afp4wfp4_preshuffled_scales(X4, W4, S4, T4),
        ValueError, "x_scales has shape .17, 2.; shuffled scales of 17 rows of 2 are contiguous and have 256 elements or more",
    ),
    "a K that 32 does not divide": (
        lambda: aiter.gemm_afp4wfp4(X4[:, :24], W4[:, :24], S4, T4),
        ValueError, "x has 24 columns of 2 codes; 32 must divide K",
    ),
    "a weight that is not shuffled": (
        lambda: aiter.gemm_afp4wfp4_preshuffle(X4, W4, S4, T4),
        ValueError, "w has shape .48, 32.; a shuffled weight is .N / 16, 16 times the bytes of a row., which 256 divides",
    ),
    "an alpha": (
        lambda: aiter.gemm_a4w4(X4, W4, S4, T4, torch.empty(32, 48), alpha=2.0),
        NotImplementedError, "gemm_a4w4: alpha is 2.0, which has no kernel",
    ),
    "an out with too few rows": (
        lambda: aiter.gemm_a4w4(X4, W4, S4, T4, torch.empty(16, 48)),
        ValueError, "gemm_a4w4: out is .16, 48.; it must be .17, 48., or have more rows",
    ),
    "values beside codes of another length": (
        lambda: aiter.gemm_a16wfp4(X16[:, :32], W4, T4),
        ValueError, r"gemm_a16wfp4: x has shape .17, 32. and w .48, 32.; they must be x \(M, K\) and w \(N, K / 2\)",
    ),
    "a product without quantisation": (
        lambda: aiter.batched_gemm_a16wfp4(X16[None], W4[None], T4[None], prequant=False),
        NotImplementedError, "batched_gemm_a16wfp4: prequant is False, which has no kernel",
    ),
    "results that no product has": (
        lambda: aiter.gemm_afp4wfp4_pre_quant(X16, W4, T4, torch.float8_e4m3fn),
        TypeError, "results are torch.float8_e4m3fn; allowed: torch.bfloat16, torch.float16, torch.float32",
    ),
    "codes of the other target": (
        lambda: aiter.batched_gemm_a16wfp4(
            X16[None], W4[None], T4[None], torch.float8_e4m3fnuz, y_scale=torch.ones(1)
        ),
        TypeError, "results are torch.float8_e4m3fnuz; this target's codes are torch.float8_e4m3fn",
    ),
    "groups of another size": (
        lambda: getattr(aiter, PTGQ)(X16[None], W8[None], torch.ones(1), 64),
        NotImplementedError, "group_size is 64, which has no kernel; allowed: 128",
    ),
    "integers with scales of groups": (
        lambda: getattr(aiter, PTGQ)(X16[None], W8[None].view(torch.int8), torch.ones(1)),
        NotImplementedError, "WQ is torch.int8, which has no kernel",
    ),
    "blocks of another size": (
        lambda: aiter.gemm_a16w8_blockscale(X16, W8, torch.ones(48, 1)),
        ValueError, "gemm_a16w8_blockscale: w_scale has shape .48, 1.; it must be .1, 1.",
    ),
    "rows beside others": (
        lambda: aiter.fused_gemm_afp4wfp4_a16w16(X4, W4, S4, T4, X16[:3], W16, False),
        ValueError, "x_bf16 has shape .3, 64.; it must be .17, 64.",
    ),
    "a fuse_type that is none": (
        lambda: aiter.fused_gemm_afp4wfp4_mul_add(X4, W4, S4, T4, 1, 2, fuse_type=2),
        ValueError, "fuse_type is 2; allowed: 0 .a c . b., 1 .a b . c.",
    ),
    "a factor of another shape": (
        lambda: aiter.fused_gemm_afp4wfp4_mul_add(X4, W4, S4, T4, torch.ones(48), 2),
        ValueError, "a has shape .48,.; it needs 816 elements",
    ),
    "heads of other features": (
        lambda: aiter.fused_gemm_afp4wfp4_split_cat(X4, W4, torch.zeros(17, 3, 8), S4, T4, 8, 9),
        ValueError, "w has 48 rows; 3 heads, as y has them, of S1 8 and S2 9 features are 51",
    ),
    "sizes of groups of 64 bits": (
        lambda: aiter.gmm(X16, W16.t()[None].expand(2, 64, 48), SIZES4.long()),
        TypeError, "gmm: group_sizes is torch.int64; allowed: torch.int32",
    ),
    "more groups than weights": (
        lambda: aiter.gmm(X16, W16.t()[None], SIZES4),
        ValueError, "they must be lhs .M, K., rhs .G, K, N., group_sizes .G,.",
    ),
    "an out of another dtype": (
        lambda: aiter.ptgmm(X16.t(), X16, SIZES4, F16, torch.empty(2, 64, 64, dtype=BF16)),
        TypeError, "existing_out is torch.bfloat16 and preferred_element_type torch.float16",
    ),
    "a sum to nothing": (
        lambda: aiter.nptgmm(X16.t(), X16, SIZES4, accumulate=True),
        ValueError, "accumulate is True and existing_out is None; give what is added to",
    ),
    "scales of 16 bits": (
        lambda: aiter.deepgemm(X16[None], W16[None], torch.zeros(1, 17, 48), SIZES4[:1], torch.ones(17)),
        ValueError, "x_scale is given and XQ is torch.bfloat16, which has no scales",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    call, error, message = REFUSED[what]
    with nothing_launched("gfx950"), pytest.raises(error, match=f"hipkittens.aiter.*{message}"):
        call()


def test_no_products_of_4_bits_on_gfx942():
    calls = (
        lambda: aiter.gemm_afp4wfp4(X4, W4, S4, T4),
        lambda: aiter.gemm_a16wfp4(X16, W4, T4),
        lambda: aiter.batched_gemm_afp4wfp4_pre_quant(X16[None], W4[None], T4[None]),
        lambda: aiter.fused_gemm_afp4wfp4_a16w16(X4, W4, S4, T4, X16, W16),
        lambda: aiter.gemm_a4w4(X4, W4, S4, T4, torch.empty(32, 48, dtype=BF16)),
    )
    with nothing_launched("gfx942"):
        for call in calls:
            with pytest.raises(ValueError, match="gfx942 has no matrix instruction with scales, which MXFP4"):
                call()
    with pytest.raises(AssertionError), nothing_launched("gfx942"):
        aiter.gemm_a16w16(X16, W16)
