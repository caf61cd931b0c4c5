# SPDX-License-Identifier: MIT
"""Quantization by AITER's names. Integers are truncated, as in AITER's kernels. Scales are the largest magnitude over the largest code,
1 for zeros, or with groups at least 1e-10 over it; values times 1 / scale are clamped. 8-bit floats are the target's own.
"""

from __future__ import annotations

from typing import Any

import torch

from ..quantization import QuantSpec, quantize
from ._results import put, put_codes, refuse

_FORMATS = {
    torch.int8: "int8",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e4m3fnuz: "fp8",
    torch.float8_e5m2: "bf8",
    torch.float8_e5m2fnuz: "bf8",
}
_GROUPS = (32, 64, 128)
GROUP_FLOOR = 1e-10


def static_per_tensor_quant(out: torch.Tensor, input: torch.Tensor, scale: torch.Tensor) -> None:
    """out = input / scale."""
    name = "static_per_tensor_quant"
    codes, _ = _quantized(name, out.dtype, input, scale.reshape(()), granularity="tensor")
    put_codes(name, "out", out, codes)


def dynamic_per_tensor_quant(out: torch.Tensor, input: torch.Tensor, scale: torch.Tensor) -> None:
    """As static_per_tensor_quant, with a scale from the tensor's largest magnitude, which is written to scale."""
    name = "dynamic_per_tensor_quant"
    codes, found = _quantized(name, out.dtype, input, granularity="tensor")
    put_codes(name, "out", out, codes)
    put(name, "scale", scale, found.reshape(scale.shape))


def dynamic_per_token_scaled_quant(
    out: torch.Tensor,
    input: torch.Tensor,
    scales: torch.Tensor,
    scale_ub: torch.Tensor | None = None,
    shuffle_scale: bool = False,
    num_rows: torch.Tensor | None = None,
    num_rows_factor: int = 1,
) -> None:
    """Each row of input by its own scale; a row of 32, 64 or 128 elements is a group.

    shuffle_scale: scales (rows, groups) are written transposed, those of a group consecutively. scale_ub, the upper bound of the largest
    magnitude, is read on the host. num_rows is not supported.
    """
    name = "dynamic_per_token_scaled_quant"
    _refuse_rows(name, num_rows, num_rows_factor)
    bound = {} if scale_ub is None else {"scale_bound": float(scale_ub)}
    codes, found = _quantized(
        name, out.dtype, input, floor=GROUP_FLOOR * (input.shape[-1] in _GROUPS), **bound
    )
    put_codes(name, "out", out, codes.reshape(out.shape))
    if found.numel() != scales.numel():
        raise ValueError(
            f"hipkittens.aiter.{name}: scales has shape {tuple(scales.shape)}; input has {found.numel()} rows, each with a scale"
        )
    if shuffle_scale:
        found = found.reshape(-1, scales.shape[-1]).t()
    put(name, "scales", scales, found.reshape(scales.shape))


def dynamic_per_group_scaled_quant_fp4(
    out: torch.Tensor,
    input: torch.Tensor,
    scales: torch.Tensor,
    group_size: int | None = 32,
    shuffle_scale: bool = True,
    num_rows: torch.Tensor | None = None,
    num_rows_factor: int = 1,
) -> None:
    """MXFP4: e8m0 scales by the rule "half_up", 0 for zeros, and e2m1 values with ties to even, two to a byte."""
    name = "dynamic_per_group_scaled_quant_fp4"
    _refuse_rows(name, num_rows, num_rows_factor)
    if group_size != 32:
        refuse(name, "group_size", group_size, "e8m0 scales are those of 32 elements")
    codes, found = _mxfp4(input, shuffle_scale)
    put_codes(name, "out", out, codes)
    put_codes(name, "scales", scales, found)


def per_token_quant_hip(
    x: torch.Tensor,
    scale: None = None,
    quant_dtype: torch.dtype = torch.int8,
    num_rows: torch.Tensor | None = None,
    num_rows_factor: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scales) of each row, scales (..., 1)."""
    name = "per_token_quant_hip"
    _refuse_rows(name, num_rows, num_rows_factor)
    _refuse_scale(name, scale)
    return _quantized(name, quant_dtype, x)


def per_group_quant_hip(
    x: torch.Tensor,
    scale: None = None,
    quant_dtype: torch.dtype = torch.int8,
    group_size: int = 128,
    transpose_scale: bool = False,
    num_rows: torch.Tensor | None = None,
    num_rows_factor: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scales) of each group of a row, scales (..., groups). transpose_scale: their memory is transposed, their shape is not."""
    name = "per_group_quant_hip"
    _refuse_rows(name, num_rows, num_rows_factor)
    _refuse_scale(name, scale)
    if group_size not in _GROUPS or x.shape[-1] % group_size:
        raise ValueError(
            f"hipkittens.aiter.{name}: group_size is {group_size}; allowed: 32, 64, 128 that divide the {x.shape[-1]} elements of a row"
        )
    codes, scales = _quantized(name, quant_dtype, x, granularity=group_size, floor=GROUP_FLOOR)
    if transpose_scale:
        scales = scales.flatten(0, -2).t().reshape(scales.shape)
    return codes, scales


def per_1x32_f4_quant_hip(
    x: torch.Tensor,
    scale: None = None,
    quant_dtype: torch.dtype = torch.float4_e2m1fn_x2,
    shuffle: bool = False,
    num_rows: torch.Tensor | None = None,
    num_rows_factor: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scales) of `dynamic_per_group_scaled_quant_fp4`. Shuffled scales are padded with 127 to multiples of 256 rows and 8 groups."""
    name = "per_1x32_f4_quant_hip"
    _refuse_rows(name, num_rows, num_rows_factor)
    _refuse_scale(name, scale)
    if quant_dtype not in (torch.float4_e2m1fn_x2, torch.uint8):
        refuse(name, "quant_dtype", quant_dtype, "allowed: torch.float4_e2m1fn_x2, torch.uint8")
    codes, scales = _mxfp4(x, shuffle)
    return codes.view(quant_dtype), scales.view(torch.float8_e8m0fnu)


def per_tensor_quant_hip(
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    quant_dtype: torch.dtype = torch.int8,
    num_rows: torch.Tensor | None = None,
    num_rows_factor: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scale) of the tensor, with scale if it is passed."""
    name = "per_tensor_quant_hip"
    _refuse_rows(name, num_rows, num_rows_factor)
    given = None if scale is None else scale.reshape(())
    codes, found = _quantized(name, quant_dtype, x, given, granularity="tensor")
    return codes, found.reshape(1)


def smoothquant_fwd(
    out: torch.Tensor, input: torch.Tensor, x_scale: torch.Tensor, y_scale: torch.Tensor
) -> None:
    """Each row of input * x_scale, in float32, by its own scale."""
    _smoothed("smoothquant_fwd", out, input, x_scale.reshape(1, -1), None, "y_scale", y_scale)


def moe_smoothquant_fwd(
    out: torch.Tensor,
    input: torch.Tensor,
    x_scale: torch.Tensor,
    topk_ids: torch.Tensor,
    y_scale: torch.Tensor,
) -> None:
    """Each row of input (tokens, features) for each of its experts, topk_ids (tokens, k), times the expert's row of x_scale (experts,
    features), by its own scale: out (k tokens, features), the tokens of the first choice, then those of the second. Rows with ids that are
    not those of an expert are zeros.
    """
    tokens, k = topk_ids.shape
    rows = input.expand(k, tokens, input.shape[-1])
    _smoothed("moe_smoothquant_fwd", out, rows, x_scale, topk_ids.t(), "y_scale", y_scale)


def smooth_per_token_scaled_quant(
    out: torch.Tensor,
    input: torch.Tensor,
    scales: torch.Tensor,
    smooth_scale: torch.Tensor,
    smooth_scale_map: torch.Tensor | None = None,
    shuffle_scale: bool = False,
    num_rows: torch.Tensor | None = None,
    num_rows_factor: int = 1,
) -> None:
    """Each row of input times the row of smooth_scale given by smooth_scale_map, by its own scale. 8-bit formats.

    shuffle_scale has no effect if a row has one scale; num_rows is not supported.
    """
    name = "smooth_per_token_scaled_quant"
    _refuse_rows(name, num_rows, num_rows_factor)
    features = input.shape[-1]
    factors = smooth_scale.reshape(-1, features)
    ids = None if smooth_scale_map is None else smooth_scale_map.reshape(input.shape[:-1])
    _smoothed(name, out, input, factors, ids, "scales", scales)


def _smoothed(name, out, x, factors, ids, scales_name, scales) -> None:
    format, rounding = format_of(name, out.dtype)
    smooth = factors if ids is not None else factors[0]
    codes, found = quantize(
        x, QuantSpec(format, floor=GROUP_FLOOR, **rounding), smooth=smooth.float(), smooth_ids=ids
    )
    if codes.dtype != out.dtype:
        raise TypeError(f"hipkittens.aiter.{name}: codes are {out.dtype}; this target's are {codes.dtype}")
    put_codes(name, "out", out, codes.reshape(out.shape) if codes.numel() == out.numel() else codes)
    put(name, scales_name, scales, found.reshape(scales.shape) if found.numel() == scales.numel() else found)


def format_of(name: str, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """The format of a QuantSpec, with its rounding."""
    if dtype not in _FORMATS:
        raise TypeError(
            f"hipkittens.aiter.{name}: codes are {dtype}; allowed: {', '.join(map(str, _FORMATS))}"
        )
    return _FORMATS[dtype], {"rounding": "truncate"} if dtype == torch.int8 else {}


def format_or_own(name: str, dtype: torch.dtype | None) -> tuple[Any, dict[str, Any]]:
    """format_of; for None the target's own e4m3."""
    return ("fp8", {}) if dtype is None else format_of(name, dtype)


def _quantized(name, dtype, x, scale=None, **options: Any):
    format, rounding = format_of(name, dtype)
    codes, scales = quantize(x, QuantSpec(format, **rounding, **options), scale)
    if codes.dtype != dtype:
        raise TypeError(f"hipkittens.aiter.{name}: codes are {dtype}; this target's are {codes.dtype}")
    return codes, scales


def _mxfp4(x, shuffle):
    return quantize(x, QuantSpec("mxfp4", scale_rule="half_up", layout="shuffled" if shuffle else "rows"))


def _refuse_rows(name, num_rows, factor) -> None:
    if num_rows is not None or factor != 1:
        refuse(name, "num_rows", f"given, or num_rows_factor {factor}", "pass the rows that count")


def _refuse_scale(name, scale) -> None:
    if scale is not None:
        refuse(name, "scale", "given", "static scales are a tensor's: per_tensor_quant_hip")
