# SPDX-License-Identifier: MIT
"""Norms by AITER's names. With a residual, the sum is normalized as it is stored, rounded, unless a docstring states otherwise."""

from __future__ import annotations

import torch

from .. import norm
from ._results import check_model_sensitive, put


def rms_norm(
    input: torch.Tensor, weight: torch.Tensor, epsilon: float, use_model_sensitive_rmsnorm: int = 0
) -> torch.Tensor:
    """x / sqrt(mean(x ** 2) + epsilon) * weight. use_model_sensitive_rmsnorm=1 rounds before the weight, as T5 does."""
    return _rms("rms_norm", input, weight, epsilon, use_model_sensitive_rmsnorm)


def rmsnorm2d_fwd(
    input: torch.Tensor, weight: torch.Tensor, epsilon: float, use_model_sensitive_rmsnorm: int = 0
) -> torch.Tensor:
    """`rms_norm`."""
    return _rms("rmsnorm2d_fwd", input, weight, epsilon, use_model_sensitive_rmsnorm)


def rmsnorm2d_fwd_with_add(
    out: torch.Tensor,
    input: torch.Tensor,
    residual_in: torch.Tensor,
    residual_out: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
) -> None:
    """residual_out = input + residual_in, and out its `rms_norm`."""
    name = "rmsnorm2d_fwd_with_add"
    y, z = _rms(name, input, weight, epsilon, use_model_sensitive_rmsnorm, residual_in)
    put(name, "out", out, y)
    put(name, "residual_out", residual_out, z)


def rms_norm_cu(out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    """`rms_norm` into out, with sums in float32."""
    put("rms_norm_cu", "out", out, norm.rms_norm(input, weight, epsilon))


def fused_add_rms_norm_cu(
    input: torch.Tensor, residual_in: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> None:
    """residual_in += input, and input becomes its `rms_norm`."""
    y, z = norm.rms_norm(input, weight, epsilon, residual=residual_in, return_residual=True)
    put("fused_add_rms_norm_cu", "input", input, y)
    put("fused_add_rms_norm_cu", "residual_in", residual_in, z)


def layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    x_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias of x = input + x_bias."""
    return _layer(input, weight, bias, epsilon, x_bias)


def layernorm2d_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float = 1e-5,
    x_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`layer_norm`."""
    return _layer(input, weight, bias, epsilon, x_bias)


def layernorm2d_fwd_with_add(
    out: torch.Tensor,
    input: torch.Tensor,
    residual_in: torch.Tensor,
    residual_out: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
    x_bias: torch.Tensor | None = None,
) -> None:
    """residual_out = input + x_bias + residual_in, and out its `layer_norm`."""
    name = "layernorm2d_fwd_with_add"
    y, z = _layer(input, weight, bias, epsilon, x_bias, residual_in)
    put(name, "out", out, y)
    put(name, "residual_out", residual_out, z)


def fused_add_rmsnorm_pad(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    res: torch.Tensor | None = None,
    x_pad_to_multiple: int = 0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`rms_norm` of x, or with res (`rms_norm` of x + res, x + res); the norm is padded with zeros to a multiple of x_pad_to_multiple
    columns.

    The sum is normalized in float32, and only the returned sum is rounded.
    """
    pad_to = x_pad_to_multiple if x_pad_to_multiple > 0 else 1
    if res is None:
        return norm.rms_norm(x, weight, epsilon, pad_to=pad_to)
    return norm.rms_norm(
        x, weight, epsilon, residual=res, return_residual=True, round_residual=False, pad_to=pad_to
    )


def _rms(name, x, weight, epsilon, model_sensitive, residual=None):
    check_model_sensitive(name, model_sensitive)
    return norm.rms_norm(x, weight, epsilon, residual=residual, return_residual=residual is not None,
                         round_before_weight=bool(model_sensitive))  # fmt: skip


def _layer(x, weight, bias, epsilon, x_bias, residual=None):
    return norm.layer_norm(
        x, weight, bias, epsilon, residual=residual, return_residual=residual is not None, x_bias=x_bias
    )
