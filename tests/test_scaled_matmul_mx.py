# SPDX-License-Identifier: MIT
"""hipkittens.scaled_matmul with e8m0 scales of 32 of K: MXFP8 and MXFP4, on gfx950."""

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec
from tests.oracles.aiter.formats import FLOAT4

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FP8, BF8 = torch.float8_e4m3fn, torch.float8_e5m2
FP4 = torch.uint8
# Root mean square of the error over that of the result: one rounding to 16 bits, and sums in float32.
BAR = {BF16: 2.5e-3, F16: 4e-4, F32: 1e-6}


@pytest.fixture(autouse=True)
def target():
    with hipkittens.simulate("gfx950", checks="all"):
        yield


def operand(dtype, rows, k, seed, exponents=20):
    """Quantized values along K, bytes of scales, and the dequantized values in float64."""
    random = torch.Generator().manual_seed(seed)
    scales = torch.randint(127 - exponents, 128 + exponents, (rows, k // 32), generator=random).to(
        torch.uint8
    )
    if dtype == FP4:
        codes = torch.randint(0, 256, (rows, k // 2), generator=random).to(torch.uint8)
        values = FLOAT4[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()].double()
    else:
        codes = torch.randn(rows, k, generator=random).to(dtype)
        values = codes.double()
    powers = torch.ldexp(torch.ones(scales.shape, dtype=torch.float64), scales.int() - 127)
    return codes, scales, values * powers.repeat_interleave(32, 1)


def rms(out, reference):
    assert not out.isnan().any()
    return ((out.double() - reference).square().mean() / reference.square().mean()).sqrt().item()


def product(dtypes, m, n, k, out_dtype=F32, exponents=20, **options):
    a, scale_a, left = operand(dtypes[0], m, k, m + k, exponents)
    b, scale_b, right = operand(dtypes[1], n, k, n + k + 1, exponents)
    out = hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b.t(), out_dtype=out_dtype, **options)
    return out, left @ right.T


@pytest.mark.parametrize("dtypes", [(FP8, FP8), (FP4, FP4), (FP8, BF8), (BF8, FP8)], ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 16, 32), (17, 128, 160), (128, 257, 288), (257, 130, 2880), (2, 48, 4096)]
)
def test_sizes(dtypes, m, n, k):
    out, reference = product(dtypes, m, n, k)
    assert rms(out, reference) <= BAR[F32]


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_results_are_rounded_once(dtype):
    out, reference = product((FP4, FP4), 40, 72, 256, dtype, exponents=3)
    assert rms(out, reference) <= BAR[dtype]


def test_products_of_large_tiles():
    """The plan chooses the 256 x 256 tile; K ends inside one."""
    out, reference = product((FP4, FP4), 4096 + 8, 4096, 672, BF16, exponents=3)
    assert rms(out, reference) <= BAR[BF16]


def test_bias_and_activation():
    bias = torch.randn(72, generator=torch.Generator().manual_seed(1))
    out, reference = product((FP8, FP8), 33, 72, 256, exponents=3, bias=bias, activation="relu")
    assert rms(out, (reference + bias.double()).relu()) <= BAR[F32]


@pytest.mark.parametrize("spec", [QuantSpec("mxfp8"), QuantSpec("mxfp4")], ids=lambda spec: spec.format)
def test_what_quantize_makes(spec):
    """Scales in rows and scales in the order of the instruction give the same bytes, close to the product of the values."""
    random = torch.Generator().manual_seed(2)
    x, w = (torch.randn(rows, 320, generator=random) for rows in (70, 96))
    (a, rows_a), (b, rows_b) = hipkittens.quantize(x, spec), hipkittens.quantize(w, spec)
    out = hipkittens.scaled_matmul(a, b.t(), rows_a, rows_b.t(), out_dtype=F32)
    left, right = (
        hipkittens.dequantize(codes, rows, spec, dtype=torch.float32).double()
        for codes, rows in ((a, rows_a), (b, rows_b))
    )
    assert rms(out, left @ right.T) <= BAR[F32]
    tiled = QuantSpec(spec.format, layout="shuffled")
    same = hipkittens.scaled_matmul(
        a, b.t(), hipkittens.quantize(x, tiled)[1], hipkittens.quantize(w, tiled)[1],
        recipe="1x32", swizzle="shuffled", out_dtype=F32,
    )  # fmt: skip
    assert torch.equal(same, out)


@pytest.mark.parametrize("dtypes", [(FP8, BF8), (FP4, FP4)], ids=str)
def test_in_torch(monkeypatch, dtypes):
    monkeypatch.setattr("hipkittens.scaled_gemm._backend.uses_torch", lambda: True)
    out, reference = product(dtypes, 17, 48, 160, exponents=3)
    assert rms(out, reference) <= BAR[F32]
    a, scale_a, _ = operand(FP8, 20, 64, 3)
    whole = scale_a.repeat(16, 4)
    with pytest.raises(ValueError, match="HIPKITTENS_BACKEND is torch, which reads no 'shuffled' scales"):
        hipkittens.scaled_matmul(a, a.t(), whole, whole, recipe="1x32", swizzle="shuffled")


def test_dtypes_of_pytorch():
    """float8_e8m0fnu and float4_e2m1fn_x2 are the same bytes."""
    a, scale_a, _ = operand(FP4, 20, 64, 3)
    b, scale_b, _ = operand(FP4, 48, 64, 4)
    expected = hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b.t())
    found = hipkittens.scaled_matmul(
        a.view(torch.float4_e2m1fn_x2), b.view(torch.float4_e2m1fn_x2).t(),
        scale_a.view(torch.float8_e8m0fnu), scale_b.view(torch.float8_e8m0fnu).t(),
    )  # fmt: skip
    assert torch.equal(found, expected)


def test_a_scale_of_nan_and_the_least_one():
    a, scale_a, left = operand(FP8, 20, 64, 5, exponents=2)
    b, scale_b, right = operand(FP8, 48, 64, 6, exponents=2)
    scale_a[3, 1], scale_a[4] = 255, 0
    out = hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b.t(), out_dtype=F32)
    assert out[3].isnan().all() and not out[[0, 1, 2, 4, 5]].isnan().any()
    assert out[4].abs().max() < 1e-30
    rest = [row for row in range(20) if row not in (3, 4)]
    assert rms(out[rest], (left @ right.T)[rest]) <= BAR[F32]


def test_operands_of_odd_strides_are_copied():
    a, scale_a, left = operand(FP8, 20, 64, 7, exponents=2)
    b, scale_b, right = operand(FP8, 48, 64, 8, exponents=2)
    wide = torch.zeros(20, 67, dtype=torch.uint8)
    wide[:, 1:65] = a.view(torch.uint8)
    out = hipkittens.scaled_matmul(
        wide.view(FP8)[:, 1:65], b.t().contiguous(), scale_a, scale_b.t(), out_dtype=F32
    )
    assert rms(out, left @ right.T) <= BAR[F32]


A, B = torch.zeros(20, 64, dtype=torch.uint8), torch.zeros(64, 48, dtype=torch.uint8)
SCALE_A, SCALE_B = torch.zeros(20, 2, dtype=torch.uint8), torch.zeros(2, 48, dtype=torch.uint8)
REFUSED = {
    "scales that are too few": (
        ValueError, "scale_a has shape .20, 1.; scaling '1x32' needs the shape .20, 2.",
        (A.view(FP8), B.view(FP8), SCALE_A[:, :1], SCALE_B), {},
    ),
    "activations of 4 bits": (
        TypeError, "allowed: both e4m3", (A[:, :32], B.view(FP8), SCALE_A, SCALE_B), {},
    ),
    "K that 32 does not divide": (
        ValueError, "K is 40; scales of 32 of K need a multiple of 32",
        (A.view(FP8)[:, :40], B.view(FP8)[:40], SCALE_A, SCALE_B), {},
    ),
    "4 bits with a scale of the tensor": (
        TypeError, "two e2m1 in a byte, and the recipe", (A, B, torch.ones(()), torch.ones(())), {},
    ),
    "integers": (
        TypeError, "allowed with the recipe '1x32': 8-bit floats and e2m1",
        (A.view(torch.int8), B.view(torch.int8), SCALE_A, SCALE_B), {},
    ),
    "another swizzle": (
        ValueError, "swizzle is '32_4_4' and the recipe", (A.view(FP8), B.view(FP8), SCALE_A, SCALE_B),
        {"swizzle": "32_4_4"},
    ),
    "too few shuffled scales": (
        ValueError, "scaling '1x32' needs 256 contiguous elements",
        (A.view(FP8), B.view(FP8), SCALE_A, SCALE_B), {"swizzle": "shuffled"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input(case):
    error, message, arguments, options = REFUSED[case]
    with pytest.raises(error, match=message):
        hipkittens.scaled_matmul(*arguments, **options)


def test_gfx942_has_no_such_instruction():
    with hipkittens.simulate("gfx942"):
        codes = torch.zeros(20, 32, dtype=torch.uint8)
        with pytest.raises(ValueError, match="gfx942 has no matrix instruction with scales"):
            hipkittens.scaled_matmul(codes, codes.t(), SCALE_A, torch.zeros(2, 20, dtype=torch.uint8))
