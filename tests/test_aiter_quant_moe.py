# SPDX-License-Identifier: MIT
"""hipkittens.aiter's quantization of expert weights: equal to the formulas in float32 steps, along every dimension."""

import pytest
import torch

import hipkittens
from hipkittens import aiter

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TESTED = {"DequantScaleRoundingMode", "downcast_to_mxfp", "downcast_to_static_fp8", "upcast_from_mxfp"}
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0):
    """Rows with magnitudes from 2^-20 to 2^20; a group of zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.exp2(
        torch.randint(-20, 20, shape[:1], generator=generator)
    ).reshape(-1, *[1] * (len(shape) - 1))
    x.flatten()[:64] = 0
    return x.clamp(-60000, 60000).to(dtype)


def described(x, axis, largest):
    """For each element its value over its scale, and the scale's byte per group; groups of 32 along axis, which is moved last."""
    x = x.float().transpose(axis, -1)
    columns = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -columns % 32)).unflatten(-1, (-1, 32))
    share = padded.abs().amax(-1) / largest
    bits = (share.view(torch.int32) + 0x007FFFFF) & 0x7F800000  # the least power of two that is not smaller
    scale = bits.view(F32)
    factor = torch.where(scale == 0, 0.0, 1.0 / scale)
    return (padded * factor.unsqueeze(-1)).flatten(-2)[..., :columns], (bits >> 23).to(torch.uint8)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("shape, axis", [((3, 64, 96), -1), ((3, 64, 96), 1), ((64, 5, 34), 0), ((2, 96), 1)])
def test_mxfp4(target, dtype, shape, axis):
    x = draw(*shape, dtype=dtype)
    codes, scales = aiter.downcast_to_mxfp(x, torch.uint8, axis)
    values, bytes_ = described(x, axis, 6.0)
    last = codes.transpose(axis, -1)
    assert torch.equal(scales.transpose(axis, -1), bytes_)
    halves = torch.stack((last & 15, last >> 4), -1).flatten(-2)
    # Half-way cases away from zero: the largest encoding whose lower half-way case is not above.
    between = (E2M1[1:] + E2M1[:-1]) / 2
    assert torch.equal(halves & 7, torch.bucketize(values.abs(), between, right=True).to(torch.uint8))
    assert torch.equal((halves >> 3).bool() & (halves & 7 != 0), (values < 0) & (halves & 7 != 0))
    if dtype != F32:
        back = aiter.upcast_from_mxfp(codes, scales, dtype, axis)
        exact = E2M1[(halves & 7).long()] * (1 - 2 * (halves >> 3).float())
        exact = exact * torch.exp2(bytes_.float() - 127).repeat_interleave(32, -1)[..., : exact.shape[-1]]
        assert back.is_contiguous() and torch.equal(back, exact.to(dtype).transpose(axis, -1))


@pytest.mark.parametrize("axis", [0, 1])
def test_mxfp8(axis):
    x = draw(64, 96)
    with hipkittens.simulate("gfx950", checks="all") as simulation:
        codes, scales = aiter.downcast_to_mxfp(x, torch.float8_e4m3fn, axis)
        back = aiter.upcast_from_mxfp(codes, scales, BF16, axis)
    values, bytes_ = described(x, axis, 448.0)
    assert simulation.findings == [] and torch.equal(scales.transpose(axis, -1), bytes_)
    right = values.to(torch.float8_e4m3fn)
    assert torch.equal(codes.transpose(axis, -1).float(), right.float())
    exact = right.float() * torch.exp2(bytes_.float() - 127).repeat_interleave(32, -1)
    assert torch.equal(back.transpose(axis, -1), exact.to(BF16))


def test_static_fp8(target):
    x, scale = draw(7, 130, seed=3).clamp(-100, 100), torch.tensor([0.5])
    codes = aiter.downcast_to_static_fp8(x, scale)
    own = torch.float8_e4m3fnuz if target == "gfx942" else torch.float8_e4m3fn
    largest = torch.finfo(own).max
    assert codes.dtype == own
    assert torch.equal(codes.float(), (x.float() / 0.5).clamp(-largest, largest).to(own).float())


def test_refused():
    x, codes = draw(64, 64), torch.zeros(64, 32, dtype=torch.uint8)
    scales = torch.zeros(64, 2, dtype=torch.uint8)
    with hipkittens.simulate("gfx942"):
        for error, message, call in (
            (ValueError, "downcast_to_mxfp: axis is 2", lambda: aiter.downcast_to_mxfp(x, torch.uint8, 2)),
            (
                NotImplementedError,
                "downcast_to_mxfp: out_quant_type is torch.float8_e5m2",
                lambda: aiter.downcast_to_mxfp(x, torch.float8_e5m2, 1),
            ),
            (
                NotImplementedError,
                "DEQUANT_SCALE_ROUNDING_MODE is DequantScaleRoundingMode.ROUND_DOWN",
                lambda: aiter.downcast_to_mxfp(x, torch.uint8, 1, aiter.DequantScaleRoundingMode.ROUND_DOWN),
            ),
            (
                TypeError,
                "upcast_from_mxfp: dtype is torch.float32",
                lambda: aiter.upcast_from_mxfp(codes, scales, F32, 1),
            ),
            (
                ValueError,
                "upcast_from_mxfp: scale is torch.uint8 of shape (64, 1)",
                lambda: aiter.upcast_from_mxfp(codes, scales[:, :1], BF16, 1),
            ),
            (ValueError, "mxfp8", lambda: aiter.downcast_to_mxfp(x, torch.float8_e4m3fn, 1)),
            (
                ValueError,
                "rows of x have 33 elements",
                lambda: aiter.downcast_to_mxfp(x[:, :33], torch.uint8, 1),
            ),
        ):
            with pytest.raises(error) as caught:
                call()
            assert message in str(caught.value), caught.value
