# SPDX-License-Identifier: MIT
"""Norms that quantize their result as they compute it, without storing it in between."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_flag, check_tensor
from ._call import call
from .norm import check_flags, check_operands
from .quantization import QuantSpec, as_described, check_codes, check_spec_of_rows, dtype_of, options_of

_NORMS = ("rms", "layer")


class QuantizedNorm(NamedTuple):
    """What `norm_quantize` returns; None for results that were not requested.

    codes, scales  as `quantize` returns them
    norm           the norm in x's dtype
    residual       x + residual, in x's dtype
    second         the norm of the second input
    """

    codes: torch.Tensor
    scales: torch.Tensor
    norm: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    second: torch.Tensor | None = None


@_backend.interruptible
def norm_quantize(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    spec: QuantSpec,
    scale: torch.Tensor | None = None,
    *,
    norm: Literal["rms", "layer"] = "rms",
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    x_bias: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    smooth: torch.Tensor | None = None,
    gemma: bool = False,
    round_before_weight: bool = False,
    round_residual: bool = True,
    second: torch.Tensor | None = None,
    second_weight: torch.Tensor | None = None,
    second_eps: float | None = None,
    return_norm: bool = False,
    return_residual: bool = False,
) -> QuantizedNorm:
    """Normalize and quantize in one launch: `quantize` of smooth * rms_norm(x, weight, eps), or of layer_norm.

    - `norm`: "rms" or "layer".
    - `x`, `weight`, `eps`, `bias`, `residual`, `x_bias`, `gate`, `gemma`, `round_before_weight`, `round_residual`: as in rms_norm and
      layer_norm; bias and x_bias are for "layer". Unlike there, the norm is quantized in float32 and not rounded to x's dtype first, as in
      AITER's kernels.
    - `spec`, `scale`: as in `quantize`, except for granularity (128, 128). Granularity "tensor" requires scale, since a row does not know
      the tensor's largest magnitude.
    - `smooth`: float32 (features,), a factor of each column (SmoothQuant).
    - `second`: another tensor with x's dtype and leading dimensions, and rows of any length, which is only normalized, by the same launch,
      with `second_weight` and `second_eps` (eps by default), without residual, gate and biases; such as DeepSeek's two latent vectors of
      1536 and 512.
    - `return_norm`: also return the norm in x's dtype, before smooth.
    - `return_residual`: also return x + residual.

    Returns a QuantizedNorm. Not differentiable. Raises TypeError or ValueError, before anything is launched, for arguments that no kernel
    supports.
    """
    where = "hipkittens.norm_quantize"
    if norm not in _NORMS:
        raise ValueError(f"{where}: norm is {norm!r}; allowed: 'rms', 'layer'")
    for name, value in (("bias", bias), ("x_bias", x_bias)):
        if norm == "rms" and value is not None:
            raise ValueError(
                f"{where}: norm is 'rms', which has no {name}; pass norm='layer', or leave it out"
            )
    check_operands(where, x, weight, bias, residual, eps, x_bias, gate)
    check_flags(where, gemma, round_before_weight, round_residual, weight)
    for name, value in (("return_norm", return_norm), ("return_residual", return_residual)):
        check_flag(where, name, value)
    check_spec_of_rows(where, spec, "the norm")
    check_codes(where, spec, x, x.shape[-1], scale)
    if spec.granularity == "tensor" and scale is None:
        raise ValueError(
            f"{where}: granularity is 'tensor' and scale is None; pass the scale, or quantize the norm, "
            "since a scale of the whole tensor is known only when all of it is normalised"
        )
    if smooth is not None:
        check_tensor(where, "smooth", smooth)
        check_dtype_and_device(where, "smooth", smooth, (torch.float32,), "x", x)
        if smooth.shape != x.shape[-1:]:
            raise ValueError(f"{where}: smooth has shape {tuple(smooth.shape)}; it must be ({x.shape[-1]},)")
    _check_second(where, x, second, second_weight, second_eps, gemma)
    if _backend.uses_torch():
        raise ValueError(f"{where}: HIPKITTENS_BACKEND is torch, which has no such operation; unset it")
    dtype_of(spec.format, x.device, where)
    codes, scales, normalised, total, other = call(
        "norm_quantize",
        x,
        residual,
        weight,
        bias,
        x_bias,
        gate,
        smooth,
        scale,
        second,
        second_weight,
        norm == "layer",
        eps,
        gemma,
        round_before_weight,
        round_residual,
        eps if second_eps is None else second_eps,
        return_norm,
        *options_of(spec, x.device),
    )
    has_sum = residual is not None or x_bias is not None
    return QuantizedNorm(
        *as_described(codes, scales, spec, x.shape[:-1], x.shape[-1], scale),
        normalised if return_norm else None,
        (total if has_sum else x) if return_residual else None,
        None if second is None else other,
    )


def _check_second(where: str, x, second, weight, eps, gemma) -> None:
    if second is None:
        for name, value in (("second_weight", weight), ("second_eps", eps)):
            if value is not None:
                raise ValueError(f"{where}: there is {name} and no second; pass both or neither")
        return
    check_tensor(where, "second", second)
    check_dtype_and_device(where, "second", second, (x.dtype,), "x", x)
    if second.dim() == 0 or second.shape[:-1] != x.shape[:-1]:
        raise ValueError(
            f"{where}: second has shape {tuple(second.shape)} and x {tuple(x.shape)}; all dimensions but the last must be equal"
        )
    check_operands(f"{where}: second", second, weight, None, None, 0.0 if eps is None else eps, None, None)
    if gemma and weight is None:
        raise ValueError(
            f"{where}: gemma is True and second_weight is None; pass the weight that 1 is added to"
        )
