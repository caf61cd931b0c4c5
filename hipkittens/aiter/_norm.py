# SPDX-License-Identifier: MIT
"""Norms by AITER's names. What is normalised with a residual is the sum as it is stored, rounded."""

from __future__ import annotations

import torch

from .. import norm
from ._results import put, refuse


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
    """(x - mean) / sqrt(variance + epsilon) * weight + bias."""
    return _layer("layer_norm", input, weight, bias, epsilon, x_bias)


def layernorm2d_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float = 1e-5,
    x_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`layer_norm`."""
    return _layer("layernorm2d_fwd", input, weight, bias, epsilon, x_bias)


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
    """residual_out = input + residual_in, and out its `layer_norm`."""
    name = "layernorm2d_fwd_with_add"
    y, z = _layer(name, input, weight, bias, epsilon, x_bias, residual_in)
    put(name, "out", out, y)
    put(name, "residual_out", residual_out, z)


def _rms(name, x, weight, epsilon, model_sensitive, residual=None):
    if model_sensitive not in (0, 1):
        raise ValueError(
            f"hipkittens.aiter.{name}: use_model_sensitive_rmsnorm is {model_sensitive!r}; allowed: 0, 1"
        )
    options = {"residual": residual, "return_residual": residual is not None}
    if not model_sensitive:
        return norm.rms_norm(x, weight, epsilon, **options)
    found = norm.rms_norm(x, None, epsilon, **options)
    return found * weight if residual is None else (found[0] * weight, found[1])


def _layer(name, x, weight, bias, epsilon, x_bias, residual=None):
    if x_bias is not None:
        refuse(name, "x_bias", "given", "add it to input")
    return norm.layer_norm(x, weight, bias, epsilon, residual=residual, return_residual=residual is not None)
