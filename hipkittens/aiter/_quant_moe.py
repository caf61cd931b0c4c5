# SPDX-License-Identifier: MIT
"""Quantization of experts' weights by AITER's names: MX formats along any dimension, and 8-bit floats with a given scale."""

from __future__ import annotations

from enum import Enum

import torch

from ..quantization import QuantSpec, dequantize, quantize
from ._results import refuse


class DequantScaleRoundingMode(Enum):
    """How the power of two of a group is rounded: to the smallest not below its largest magnitude over the largest code, or the largest not
    above.
    """

    ROUND_UP = 0
    ROUND_DOWN = 1


def downcast_to_static_fp8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x / scale, float32 of one element, as e4m3 of the target: float8_e4m3fn on gfx950, float8_e4m3fnuz on gfx942."""
    return quantize(x, QuantSpec("fp8", "tensor"), scale.reshape(()))[0]


def downcast_to_mxfp(
    src_tensor: torch.Tensor,
    out_quant_type: torch.dtype,
    axis: int,
    DEQUANT_SCALE_ROUNDING_MODE: DequantScaleRoundingMode = DequantScaleRoundingMode.ROUND_UP,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scales) in groups of 32 along axis: torch.uint8 for MXFP4, two values to a byte of that axis, with ties away from zero, or
    torch.float8_e4m3fn for MXFP8 (gfx950). Scales are bytes of e8m0, the least powers of two with which no value exceeds the largest code.
    Both results are views whose memory has axis last; an axis other than the last one is copied there first.
    """
    name = "downcast_to_mxfp"
    axis = _axis(name, src_tensor, axis)
    if DEQUANT_SCALE_ROUNDING_MODE is not DequantScaleRoundingMode.ROUND_UP:
        refuse(name, "DEQUANT_SCALE_ROUNDING_MODE", DEQUANT_SCALE_ROUNDING_MODE, "pass ROUND_UP")
    spec = _spec(name, "out_quant_type", out_quant_type)
    codes, scales = quantize(src_tensor.transpose(axis, -1).contiguous(), spec)
    return codes.transpose(axis, -1), scales.transpose(axis, -1)


def upcast_from_mxfp(
    tensor: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, axis: int
) -> torch.Tensor:
    """The result of downcast_to_mxfp as bfloat16 or float16, contiguous. PyTorch operations, on any device."""
    name = "upcast_from_mxfp"
    axis = _axis(name, tensor, axis)
    spec = _spec(name, "tensor", tensor.dtype)
    if dtype not in (torch.bfloat16, torch.float16):
        raise TypeError(f"hipkittens.aiter.{name}: dtype is {dtype}; allowed: torch.bfloat16, torch.float16")
    codes = tensor.transpose(axis, -1)
    columns = codes.shape[-1] * (2 if tensor.dtype == torch.uint8 else 1)
    expected = (*codes.shape[:-1], -(-columns // 32))
    if (
        scale.dtype != torch.uint8
        or scale.dim() != tensor.dim()
        or scale.transpose(axis, -1).shape != expected
    ):
        raise ValueError(
            f"hipkittens.aiter.{name}: scale is {scale.dtype} of shape {tuple(scale.shape)}; it must be torch.uint8, one for each 32 elements "
            f"of tensor along axis {axis}"
        )
    return dequantize(codes, scale.transpose(axis, -1), spec, dtype).transpose(axis, -1).contiguous()


def _spec(name: str, argument: str, dtype: torch.dtype) -> QuantSpec:
    if dtype == torch.uint8:
        return QuantSpec("mxfp4", scale_rule="round_up", rounding="away")
    if dtype == torch.float8_e4m3fn:
        return QuantSpec("mxfp8", scale_rule="round_up")
    refuse(name, argument, dtype, "allowed: torch.uint8 (MXFP4), torch.float8_e4m3fn (MXFP8)")


def _axis(name: str, x: torch.Tensor, axis: int) -> int:
    if not -x.dim() <= axis < x.dim():
        raise ValueError(
            f"hipkittens.aiter.{name}: axis is {axis}; the tensor has dimensions 0 .. {x.dim() - 1}"
        )
    return axis % x.dim()
