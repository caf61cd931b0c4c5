# SPDX-License-Identifier: MIT
"""Norms with quantized results, by AITER's names, each in one launch.

The norm is quantized from its float32 value. `rmsnorm2d_*` and `layernorm2d_*` normalize the sum with a residual as it is stored, rounded;
`fused_rms_*` normalize it in float32. Integers are truncated, and a row of zeros has scale 1. dtype_quant None is the target's own e4m3.
"""

from __future__ import annotations

from typing import Any

import torch

from ..norm_quantization import QuantizedNorm, norm_quantize
from ..quantization import QuantSpec
from ._quant import GROUP_FLOOR, format_of, format_or_own
from ._results import check_model_sensitive, put, put_codes, refuse


def rmsnorm2d_fwd_with_smoothquant(
    out: torch.Tensor,
    input: torch.Tensor,
    xscale: torch.Tensor,
    yscale: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
) -> None:
    """Quantized values and scales of each row of xscale * `rms_norm`."""
    _rows("rmsnorm2d_fwd_with_smoothquant", out, yscale, input, weight, epsilon, smooth=xscale,
          sensitive=use_model_sensitive_rmsnorm)  # fmt: skip


def rmsnorm2d_fwd_with_add_smoothquant(
    out: torch.Tensor,
    input: torch.Tensor,
    residual_in: torch.Tensor,
    residual_out: torch.Tensor,
    xscale: torch.Tensor,
    yscale: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    out_before_quant: torch.Tensor | None = None,
    use_model_sensitive_rmsnorm: int = 0,
) -> None:
    """The same for residual_out = input + residual_in. out_before_quant: the norm, before xscale."""
    name = "rmsnorm2d_fwd_with_add_smoothquant"
    found = _rows(name, out, yscale, input, weight, epsilon, residual_in, residual_out, smooth=xscale,
                  sensitive=use_model_sensitive_rmsnorm, return_norm=out_before_quant is not None)  # fmt: skip
    if out_before_quant is not None:
        put(name, "out_before_quant", out_before_quant, found.norm)


def rmsnorm2d_fwd_with_dynamicquant(
    out: torch.Tensor,
    input: torch.Tensor,
    yscale: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
) -> None:
    """Quantized values and scales of each row of `rms_norm`."""
    _rows(
        "rmsnorm2d_fwd_with_dynamicquant",
        out,
        yscale,
        input,
        weight,
        epsilon,
        sensitive=use_model_sensitive_rmsnorm,
    )


def rmsnorm2d_fwd_with_add_dynamicquant(
    out: torch.Tensor,
    input: torch.Tensor,
    residual_in: torch.Tensor,
    residual_out: torch.Tensor,
    yscale: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
) -> None:
    """The same for residual_out = input + residual_in."""
    _rows("rmsnorm2d_fwd_with_add_dynamicquant", out, yscale, input, weight, epsilon, residual_in, residual_out,
          sensitive=use_model_sensitive_rmsnorm)  # fmt: skip


def layernorm2d_fwd_with_smoothquant(
    out: torch.Tensor,
    input: torch.Tensor,
    xscale: torch.Tensor,
    yscale: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float = 1e-5,
    x_bias: torch.Tensor | None = None,
) -> None:
    """Quantized values and scales of each row of xscale * `layer_norm`."""
    _rows("layernorm2d_fwd_with_smoothquant", out, yscale, input, weight, epsilon, smooth=xscale,
          norm="layer", bias=bias, x_bias=x_bias)  # fmt: skip


def layernorm2d_fwd_with_add_smoothquant(
    out: torch.Tensor,
    input: torch.Tensor,
    residual_in: torch.Tensor,
    residual_out: torch.Tensor,
    xscale: torch.Tensor,
    yscale: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float = 1e-5,
    x_bias: torch.Tensor | None = None,
) -> None:
    """The same for residual_out = input + x_bias + residual_in."""
    _rows("layernorm2d_fwd_with_add_smoothquant", out, yscale, input, weight, epsilon, residual_in, residual_out, smooth=xscale,
          norm="layer", bias=bias, x_bias=x_bias)  # fmt: skip


def layernorm2d_fwd_with_dynamicquant(
    out: torch.Tensor,
    input: torch.Tensor,
    yscale: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float = 1e-5,
    x_bias: torch.Tensor | None = None,
) -> None:
    """Quantized values and scales of each row of `layer_norm`."""
    _rows(
        "layernorm2d_fwd_with_dynamicquant",
        out,
        yscale,
        input,
        weight,
        epsilon,
        norm="layer",
        bias=bias,
        x_bias=x_bias,
    )


def layernorm2d_fwd_with_add_dynamicquant(
    out: torch.Tensor,
    input: torch.Tensor,
    residual_in: torch.Tensor,
    residual_out: torch.Tensor,
    yscale: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float = 1e-5,
    x_bias: torch.Tensor | None = None,
) -> None:
    """The same for residual_out = input + x_bias + residual_in."""
    _rows("layernorm2d_fwd_with_add_dynamicquant", out, yscale, input, weight, epsilon, residual_in, residual_out,
          norm="layer", bias=bias, x_bias=x_bias)  # fmt: skip


def fused_rms_fp8_per_tensor_static_quant(
    inp1: torch.Tensor,
    inp1_weight: torch.Tensor,
    inp1_epsilon: float,
    inp1_scale: torch.Tensor,
    inp2: torch.Tensor | None = None,
    inp2_weight: torch.Tensor | None = None,
    inp2_epsilon: float | None = None,
    dtype_quant: torch.dtype | None = None,
    res1: torch.Tensor | None = None,
    output_unquantized_inp1: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """(codes, norm, second norm, inp1 + res1), None for results that are not requested; inp1 may be wider than inp2, which AITER truncates."""
    found = _fused("fused_rms_fp8_per_tensor_static_quant", dtype_quant, {"granularity": "tensor"}, inp1, inp1_weight, inp1_epsilon,
                   inp2, inp2_weight, inp2_epsilon, res1, output_unquantized_inp1, inp1_scale)  # fmt: skip
    return found.codes, found.norm, found.second, found.residual


def fused_rms_fp8_group_quant(
    inp1: torch.Tensor,
    inp1_weight: torch.Tensor,
    inp1_epsilon: float,
    inp2: torch.Tensor | None = None,
    inp2_weight: torch.Tensor | None = None,
    inp2_epsilon: float | None = None,
    group_size: int = 128,
    dtype_quant: torch.dtype | None = None,
    res1: torch.Tensor | None = None,
    output_unquantized_inp1: bool = False,
    transpose_scale: bool = False,
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """((codes, scales), norm, second norm, inp1 + res1), None for results that are not requested. group_size: 32, 64 or 128.
    transpose_scale: the scales' memory is transposed, their shape is not.
    """
    options = {"granularity": group_size, "floor": GROUP_FLOOR}
    found = _fused("fused_rms_fp8_group_quant", dtype_quant, options, inp1, inp1_weight, inp1_epsilon, inp2, inp2_weight, inp2_epsilon,
                   res1, output_unquantized_inp1)  # fmt: skip
    scales = found.scales
    if transpose_scale:
        scales = scales.flatten(0, -2).t().reshape(scales.shape)
    return (found.codes, scales), found.norm, found.second, found.residual


def fused_rms_mxfp4_quant(
    x1: torch.Tensor,
    x1_weight: torch.Tensor,
    x1_epsilon: float,
    x2: torch.Tensor | None = None,
    x2_weight: torch.Tensor | None = None,
    x2_epsilon: float = 0.0,
    res1: torch.Tensor | None = None,
    shuffle: bool | None = False,
    scale_shuffle_padding: bool | None = False,
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor | None, torch.Tensor | None]:
    """((codes, scales), second norm, x1 + res1): e8m0 scales by the rule "even", values with ties away from 0. Shuffled scales are padded;
    scale_shuffle_padding alone is not supported.
    """
    name = "fused_rms_mxfp4_quant"
    spec = mxfp4_of(name, shuffle, scale_shuffle_padding)
    found = norm_quantize(x1, x1_weight, x1_epsilon, spec, **_beside(x2, x2_weight, x2_epsilon, res1))
    return (found.codes, found.scales), found.second, found.residual


def mxfp4_of(name: str, shuffle: bool | None, padded: bool | None) -> QuantSpec:
    """The QuantSpec of AITER's Triton kernels."""
    if padded and not shuffle:
        refuse(name, "scale_shuffle_padding", "True without shuffle", "pad the scales, or shuffle them")
    return QuantSpec("mxfp4", scale_rule="even", rounding="away", layout="shuffled" if shuffle else "rows")


def _rows(
    name,
    out,
    yscale,
    x,
    weight,
    epsilon,
    residual=None,
    residual_out=None,
    smooth=None,
    sensitive=0,
    **options: Any,
):
    check_model_sensitive(name, sensitive)
    format, rounding = format_of(name, out.dtype)
    smooth = None if smooth is None else smooth.reshape(-1)
    found = norm_quantize(x, weight, epsilon, QuantSpec(format, **rounding), residual=residual, smooth=smooth,
                          round_before_weight=bool(sensitive), return_residual=residual is not None, **options)  # fmt: skip
    _check_codes(name, out.dtype, found)
    put_codes(name, "out", out, found.codes)
    if yscale.numel() != found.scales.numel():
        raise ValueError(f"hipkittens.aiter.{name}: yscale has shape {tuple(yscale.shape)}; input has {found.scales.numel()} rows, each "
                         "with a scale")  # fmt: skip
    put(name, "yscale", yscale, found.scales.reshape(yscale.shape))
    if found.residual is not None:
        put(name, "residual_out", residual_out, found.residual)
    return found


def _fused(
    name,
    dtype,
    options,
    x,
    weight,
    epsilon,
    second,
    second_weight,
    second_epsilon,
    residual,
    return_norm,
    scale=None,
):
    format, rounding = format_or_own(name, dtype)
    beside = _beside(second, second_weight, second_epsilon, residual)
    scale = None if scale is None else scale.reshape(())
    found = norm_quantize(
        x, weight, epsilon, QuantSpec(format, **rounding, **options), scale, return_norm=return_norm, **beside
    )
    if dtype is not None:
        _check_codes(name, dtype, found)
    return found


def _beside(second, second_weight, second_epsilon, residual) -> dict[str, Any]:
    options = {
        "residual": residual,
        "return_residual": residual is not None,
        "round_residual": residual is None,
    }
    if second is not None:
        options |= {"second": second, "second_weight": second_weight, "second_eps": second_epsilon}
    return options


def _check_codes(name: str, dtype: torch.dtype, found: QuantizedNorm) -> None:
    if found.codes.dtype != dtype:
        raise TypeError(f"hipkittens.aiter.{name}: codes are {dtype}; this target's are {found.codes.dtype}")
