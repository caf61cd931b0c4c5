# SPDX-License-Identifier: MIT
"""hipkittens.scaled_matmul of MXFP4 weights and wider activations: 8-bit floats on gfx950, bfloat16 on both targets."""

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, dequantize, quantize, scaled_matmul
from tests.oracles.aiter.formats import FLOAT4

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FP8, BF8 = torch.float8_e4m3fn, torch.float8_e5m2
BAR = {BF16: 2.5e-3, F16: 4e-4, F32: 1e-6}
# For a: its dtype and scaling.
ACTIVATIONS = [(FP8, "1x32"), (BF8, "1x32"), (FP8, "row"), (BF8, "tensor"), (BF16, "row"), (BF16, None)]
SIZES = [(1, 16, 32), (17, 128, 160), (255, 257, 288), (257, 130, 2880), (2, 48, 4096)]


@pytest.fixture(params=["gfx942", "gfx950"])
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def powers(random, rows, k, exponents):
    bytes = torch.randint(127 - exponents, 128 + exponents, (rows, k // 32), generator=random)
    values = torch.ldexp(torch.ones(bytes.shape, dtype=torch.float64), bytes.int() - 127)
    return bytes.to(torch.uint8), values.repeat_interleave(32, 1)


def weights(rows, k, seed, exponents=20):
    """Quantized values (rows, K / 2), e8m0 scales (rows, K / 32) and the dequantized values in float64."""
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, k // 2), generator=random).to(torch.uint8)
    scales, factors = powers(random, rows, k, exponents)
    return (
        codes,
        scales,
        FLOAT4[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()].double() * factors,
    )


def activations(dtype, scaling, rows, k, seed, exponents=20):
    random = torch.Generator().manual_seed(seed)
    codes = torch.randn(rows, k, generator=random).to(dtype)
    if scaling == "1x32":
        scales, factors = powers(random, rows, k, exponents)
        return codes, scales, codes.double() * factors
    if scaling is None:
        return codes, None, codes.double()
    scale = torch.ldexp(
        torch.rand((rows, 1) if scaling == "row" else (), generator=random) + 0.5,
        torch.randint(-exponents, exponents + 1, (rows, 1) if scaling == "row" else (), generator=random),
    )
    return codes, scale, codes.double() * scale.double()


def rms(out, reference):
    assert not out.isnan().any()
    return ((out.double() - reference).square().mean() / reference.square().mean()).sqrt().item()


def product(of_a, m, n, k, out_dtype=F32, exponents=20, **options):
    a, scale_a, left = activations(*of_a, m, k, m + k, exponents)
    b, scale_b, right = weights(n, k, n + k + 1, exponents)
    return scaled_matmul(a, b.t(), scale_a, scale_b.t(), out_dtype=out_dtype, **options), left @ right.T


def has(target, activation):
    return target == "gfx950" or activation[0] == BF16


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_sizes(target, activation, shape):
    if has(target, activation):
        assert rms(*product(activation, *shape)) <= BAR[F32]
    else:
        with pytest.raises(ValueError, match="gfx942 has no matrix instruction with scales"):
            product(
                (torch.float8_e4m3fnuz if activation[0] == FP8 else torch.float8_e5m2fnuz, activation[1]),
                *shape,
            )


@pytest.mark.parametrize("activation", [(FP8, "1x32"), (FP8, "row"), (BF16, None)], ids=str)
def test_whole_numbers_are_exact(target, activation):
    if not has(target, activation):
        return
    random = torch.Generator().manual_seed(4)
    a = torch.randint(-8, 9, (70, 320), generator=random)
    codes, _, _ = weights(132, 320, 5)
    values = FLOAT4[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()].double()
    ones = torch.full((132, 10), 128, dtype=torch.uint8)  # 2: halves become integers
    scale_a = {"1x32": ones[:70] - 1, "row": torch.ones(70, 1), None: None}[activation[1]]
    out = scaled_matmul(a.to(activation[0]), codes.t(), scale_a, ones.t(), out_dtype=F32)
    assert torch.equal(out.double(), a.double() @ (2 * values).T)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_results_are_rounded_once(target, dtype):
    for activation in ((BF16, "row"), *(((FP8, "row"),) if target == "gfx950" else ())):
        assert rms(*product(activation, 40, 72, 256, dtype, exponents=3)) <= BAR[dtype]


def test_bias_and_activation(target):
    bias = torch.randn(72, generator=torch.Generator().manual_seed(1))
    for k in (256, 4096):  # the latter in parts of K
        out, reference = product((BF16, "row"), 33, 72, k, exponents=3, bias=bias, activation="relu")
        assert rms(out, (reference + bias.double()).relu()) <= BAR[F32]


def test_ends_of_e8m0(target):
    """0 is 2^-127 and not zero, 255 is NaN only in its own column; a row of zeros stays one."""
    a, _, left = activations(BF16, None, 20, 64, 5)
    a[7] = 0
    b, scale_b, right = weights(48, 64, 6, exponents=2)
    scale_b[3, 1], scale_b[4] = 255, 0
    out = scaled_matmul(a, b.t(), None, scale_b.t(), out_dtype=F32)
    assert out[:, 3].isnan().all() and not out[:, [*range(3), *range(4, 48)]].isnan().any()
    assert out[:, 4].abs().max() < 1e-30
    rest = [column for column in range(48) if column not in (3, 4)]
    left[7] = 0
    assert rms(out[:, rest], (left @ right.T)[:, rest]) <= BAR[F32] and (out[7, rest] == 0).all()


def test_strides_and_shuffled_scales(target):
    a, scale, left = activations(BF16, "row", 20, 96, 7, exponents=2)
    b, scale_b, right = weights(48, 96, 8, exponents=2)
    wide = torch.zeros(20, 101, dtype=BF16)
    wide[:, 3:99] = a
    expected = scaled_matmul(a, b.t(), scale, scale_b.t(), out_dtype=F32)
    assert rms(expected, left @ right.T) <= BAR[F32]
    for x in (wide[:, 3:99], a.t().contiguous().t()):
        assert torch.equal(scaled_matmul(x, b.t().contiguous(), scale, scale_b.t(), out_dtype=F32), expected)
    tiled = hipkittens.scaled_gemm.shuffled(scale_b)
    same = scaled_matmul(a, b.t(), scale, tiled, recipe=("row", "1x32"), swizzle="shuffled", out_dtype=F32)
    assert torch.equal(same, expected)


def test_what_quantize_makes(target):
    random = torch.Generator().manual_seed(2)
    x, w = (torch.randn(rows, 320, generator=random).to(BF16) for rows in (70, 96))
    spec = QuantSpec("mxfp4")
    codes, scales = quantize(w, spec)
    out = scaled_matmul(x, codes.t(), None, scales.t(), out_dtype=F32)
    assert rms(out, x.double() @ dequantize(codes, scales, spec, torch.float32).double().T) <= BAR[F32]


def test_in_torch(monkeypatch):
    monkeypatch.setattr("hipkittens.scaled_gemm._backend.uses_torch", lambda: True)
    for activation in ACTIVATIONS:
        assert rms(*product(activation, 17, 48, 160, exponents=3)) <= BAR[F32]


def test_bad_input(target):
    a, b = torch.zeros(20, 64, dtype=BF16), torch.zeros(32, 48, dtype=torch.uint8)
    scale_b, one = torch.zeros(2, 48, dtype=torch.uint8), torch.ones(())
    for arguments, options, error, message in [
        ((a, b, None, torch.ones(1, 48)), {}, TypeError, r"two e2m1 in a byte, and the recipe \('tensor', 'row'\); allowed: \('tensor', '1x32'\)"),
        ((a, b, scale_b[:, :20].t(), scale_b), {}, TypeError, r"the recipe \('1x32', '1x32'\); allowed: \('tensor', '1x32'\)"),
        ((a, b[:30], None, scale_b), {}, ValueError, "a has 64 columns and b has 30 rows, 64 and 60 of K"),
        ((a, b, None, scale_b[:1]), {}, ValueError, "scale_b has shape .1, 48.; scaling '1x32' needs the shape .2, 48."),
        ((a.half(), b, None, scale_b), {}, TypeError, "a is torch.float16; allowed"),
        ((a, b, torch.ones(3, 1), scale_b), {}, ValueError, "scale_a has shape .3, 1., which no recipe has"),
        ((a[:, :40], b[:20], None, scale_b[:1]), {}, ValueError, "K is 40; scales of 32 of K need a multiple of 32"),
        ((b.t(), a.t(), one, None), {}, TypeError, "a is torch.uint8 and b is torch.bfloat16; allowed"),
        ((a, b, None, scale_b), {"formats": "fp5"}, ValueError, "formats is 'fp5'; allowed"),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            scaled_matmul(*arguments, **options)


def test_the_wrong_targets_floats_are_refused():
    with hipkittens.simulate("gfx950"), pytest.raises(TypeError, match=r"a is torch\.float8_e4m3fnuz"):
        scaled_matmul(
            torch.zeros(4, 32).to(torch.float8_e4m3fnuz), torch.zeros(16, 8, dtype=torch.uint8), torch.ones(()),
            torch.zeros(1, 8, dtype=torch.uint8),
        )  # fmt: skip
