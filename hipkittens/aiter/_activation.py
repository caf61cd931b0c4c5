# SPDX-License-Identifier: MIT
"""Gated activations by AITER's names: act(input[..., :d]) * input[..., d:], for any d."""

from __future__ import annotations

import torch

from ..activation import gated_activation
from ..quantization import QuantSpec, gated_activation_quantize
from ._norm_quant import mxfp4_of
from ._quant import GROUP_FLOOR, format_or_own, static_per_tensor_quant
from ._results import put, refuse

_TRITON_GATES = ("silu", "gelu", "gelu_tanh", "relu")


def silu_and_mul(out: torch.Tensor, input: torch.Tensor) -> None:
    put("silu_and_mul", "out", out, gated_activation(input, "silu"))


def gelu_and_mul(out: torch.Tensor, input: torch.Tensor) -> None:
    put("gelu_and_mul", "out", out, gated_activation(input, "gelu"))


def gelu_tanh_and_mul(out: torch.Tensor, input: torch.Tensor) -> None:
    put("gelu_tanh_and_mul", "out", out, gated_activation(input, "gelu_tanh"))


def scaled_silu_and_mul(out: torch.Tensor, input: torch.Tensor, scale: torch.Tensor) -> None:
    """silu(a) * b * (1 / scale) as 8-bit floats, rounded once; scale stays on the device."""
    static_per_tensor_quant(out, gated_activation(input.float(), "silu"), scale)


def act_mul_and_fp8_group_quant(
    x: torch.Tensor, activation: str, group_size: int, dtype_quant: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scales) for each group of 32, 64 or 128 gated values, which are not rounded first: a separate launch widens x to float32.
    activation: "silu", "gelu", "gelu_tanh" or "relu". dtype_quant None is the target's own e4m3.
    """
    name = "act_mul_and_fp8_group_quant"
    format, rounding = format_or_own(name, dtype_quant)
    spec = QuantSpec(format, granularity=group_size, floor=GROUP_FLOOR, **rounding)
    codes, scales = _gated_codes(name, x, activation, spec)
    if dtype_quant not in (None, codes.dtype):
        raise TypeError(f"hipkittens.aiter.{name}: codes are {dtype_quant}; this target's are {codes.dtype}")
    return codes, scales


def act_mul_and_mxfp4_quant(
    x: torch.Tensor,
    activation: str,
    scaling_mode: str = "even",
    shuffle: bool = False,
    scale_shuffle_padding: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scales) in MXFP4, as in `fused_rms_mxfp4_quant`, of gated values as in `act_mul_and_fp8_group_quant`."""
    name = "act_mul_and_mxfp4_quant"
    if scaling_mode != "even":
        refuse(name, "scaling_mode", repr(scaling_mode), "hipkittens.QuantSpec has other rules")
    return _gated_codes(name, x, activation, mxfp4_of(name, shuffle, scale_shuffle_padding))


def _gated_codes(name, x, activation, spec):
    if activation not in _TRITON_GATES:
        refuse(name, "activation", repr(activation), f"allowed: {', '.join(_TRITON_GATES)}")
    return gated_activation_quantize(x.float(), spec, activation)
