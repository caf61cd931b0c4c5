# SPDX-License-Identifier: MIT
"""Quantization of two flattened dimensions, and of sums over the parts of a split K, by AITER's names.

Flattening is free if groups end with the last dimension. Parts are added by PyTorch in float32, in a separate launch; the rest is that of
the names without "reduce". dtype_quant None is the target's own e4m3.
"""

from __future__ import annotations

import torch

from ..quantization import QuantSpec, quantize
from ._activation import act_mul_and_fp8_group_quant
from ._norm_quant import fused_rms_fp8_group_quant, mxfp4_of
from ._quant import GROUP_FLOOR, format_or_own
from ._results import check_place, placed


def fused_flatten_fp8_group_quant(
    x: torch.Tensor, group_size: int, dtype_quant: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes [M, N1 * N2], scales [M, groups]) of x [M, N1, N2], each group_size (32, 64 or 128) of a flattened row by its largest
    magnitude over the largest code. If N2 is not a multiple of the group size, rows that are not dense are copied first.
    """
    name = "fused_flatten_fp8_group_quant"
    format, rounding = format_or_own(name, dtype_quant)
    spec = _group_spec(format, group_size, rounding)
    codes, scales = _flattened(name, x, group_size, spec)
    if dtype_quant not in (None, codes.dtype):
        raise TypeError(f"hipkittens.aiter.{name}: codes are {dtype_quant}; this target's are {codes.dtype}")
    return codes, scales


def fused_flatten_mxfp4_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in MXFP4, as in `fused_rms_mxfp4_quant`."""
    name = "fused_flatten_mxfp4_quant"
    return _flattened(name, x, 32, mxfp4_of(name, False, False))


def fused_reduce_act_mul_fp8_group_quant(
    x: torch.Tensor,
    activation: str = "silu",
    x2: torch.Tensor | None = None,
    group_size: int = 128,
    dtype_quant: torch.dtype | None = None,
    dtype: torch.dtype | None = torch.bfloat16,
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor | None]:
    """((codes, scales), sum of x2): `act_mul_and_fp8_group_quant` of x [M, 2 n], or of the sum of x [parts, M, 2 n]; in the latter case
    with the sum of x2 [parts, M, n2] in dtype.
    """
    name = "fused_reduce_act_mul_fp8_group_quant"
    where = f"hipkittens.aiter.{name}"
    if x.dim() not in (2, 3) or (x2 is None) != (x.dim() == 2):
        raise ValueError(
            f"{where}: x has shape {tuple(x.shape)} and x2 {'is None' if x2 is None else tuple(x2.shape)}; x is [M, 2 n] alone, or "
            "[parts, M, 2 n] with x2 [parts, M, n2]"
        )
    if x2 is not None and (x2.dim() != 3 or x2.shape[:2] != x.shape[:2]):
        raise ValueError(
            f"{where}: x has shape {tuple(x.shape)} and x2 {tuple(x2.shape)}; parts and M are the same"
        )
    second = None if x2 is None else _summed(x2).to(dtype or x.dtype)
    whole = x if x2 is None else _summed(x)
    return act_mul_and_fp8_group_quant(whole, activation, group_size, dtype_quant), second


def fused_reduce_rms_fp8_group_quant(
    inp1: torch.Tensor,
    inp1_weight: torch.Tensor,
    inp1_epsilon: float,
    inp2: torch.Tensor | None = None,
    inp2_weight: torch.Tensor | None = None,
    inp2_epsilon: float | None = None,
    inp3: torch.Tensor | None = None,
    group_size: int = 128,
    dtype_quant: torch.dtype | None = None,
    dtype: torch.dtype | None = None,
    res1: torch.Tensor | None = None,
    output_unquantized_inp1: bool = False,
    out3: torch.Tensor | None = None,
) -> tuple[
    tuple[torch.Tensor, torch.Tensor],
    torch.Tensor | None,
    torch.Tensor | None,
    torch.Tensor | None,
    torch.Tensor | None,
]:
    """((codes, scales), norm, second norm, inp1 + res1, sum of inp3), None for results that are not requested: `fused_rms_fp8_group_quant`
    of inp1 and inp2 [M, n], or of their sums from [parts, M, n]; in the latter case with that of inp3. Results that are not quantized
    have dtype, by default inp1's.
    """
    name = "fused_reduce_rms_fp8_group_quant"
    where, dtype = f"hipkittens.aiter.{name}", dtype or inp1.dtype
    split = inp1.dim() == 3
    for other_name, other in (("inp2", inp2), ("inp3", inp3)):
        if other is not None and (other.dim() != inp1.dim() or other.shape[:-1] != inp1.shape[:-1]):
            raise ValueError(
                f"{where}: inp1 has shape {tuple(inp1.shape)} and {other_name} {tuple(other.shape)}; only their columns may differ"
            )
    if inp3 is not None and not split:
        raise ValueError(
            f"{where}: inp3 is given and inp1 has no parts; a sum is over the parts of a split K"
        )
    if inp3 is not None:
        check_place(name, "out3", out3, *inp3.shape[1:])
    third = None if inp3 is None else placed(name, "out3", out3, _summed(inp3).to(dtype))
    first, second, residual = inp1, inp2, res1
    if split:
        first, second = _summed(inp1), None if inp2 is None else _summed(inp2)
        residual = None if res1 is None else res1.float()
    codes, *others = fused_rms_fp8_group_quant(
        first, inp1_weight, inp1_epsilon, second, inp2_weight, inp2_epsilon, group_size, dtype_quant, residual,
        output_unquantized_inp1,
    )  # fmt: skip
    norm, other, summed = (None if each is None else each.to(dtype) for each in others)
    return codes, norm, other, summed, third


def _group_spec(format, group_size, rounding):
    return QuantSpec(format, granularity=group_size, floor=GROUP_FLOOR, **rounding)


def _flattened(name, x, group, spec):
    if x.dim() != 3:
        raise ValueError(f"hipkittens.aiter.{name}: x has shape {tuple(x.shape)}; it must be [M, N1, N2]")
    if x.shape[2] % group:
        return quantize(x.flatten(1), spec)
    codes, scales = quantize(x, spec)
    return codes.flatten(1), scales.flatten(1)


def _summed(parts: torch.Tensor) -> torch.Tensor:
    return parts.sum(0, dtype=torch.float32)
