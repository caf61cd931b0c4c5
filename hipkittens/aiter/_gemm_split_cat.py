# SPDX-License-Identifier: MIT
"""GEMMs whose heads are split and concatenated with others, by AITER's names, in one launch. For multi-head latent attention: keys without
position and values from the latent, and y the keys' rotary part. config only chooses among AITER's own kernels.
"""

from __future__ import annotations

import torch

from .. import scaled_matmul_concat_heads
from .._arguments import check_tensor, check_whole_number
from .._panels import shape_of_weights
from . import _gemm_blockscale, _gemm_fp4
from ._gemm_fp4 import Operand, preshuffled_operands
from ._operands import check_operands, check_output, panels_of_bands


def fused_gemm_a8w8_blockscale_split_cat(
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    S1: int,
    S2: int,
    dtype: torch.dtype = torch.bfloat16,
    config: dict | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """gemm_a8w8_blockscale of x and w as heads (M, D, S1 + S2): (their first S1 features concatenated with y (M, D, S3), their last S2)."""
    return _of_fp8("fused_gemm_a8w8_blockscale_split_cat", x, w, y, x_scale, w_scale, S1, S2, dtype)


def fused_gemm_a8w8_blockscale_preshuffle_split_cat(
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    S1: int,
    S2: int,
    dtype: torch.dtype = torch.bfloat16,
    config: dict | None = None,
    is_x_scale_transposed: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """fused_gemm_a8w8_blockscale_split_cat of a shuffled weight (N / 16, 16 K). is_x_scale_transposed:
    a contiguous x_scale is read as (ceil(K / 128), M), whatever its shape.
    """
    name = "fused_gemm_a8w8_blockscale_preshuffle_split_cat"
    panels = panels_of_bands(name, "w", w)
    if is_x_scale_transposed:
        x_scale = _gemm_blockscale.by_columns(name, "x_scale", x_scale, x.shape[0])
    return _of_fp8(name, x, panels, y, x_scale, w_scale, S1, S2, dtype)


def fused_gemm_afp4wfp4_split_cat(
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    S1: int,
    S2: int,
    dtype: torch.dtype = torch.bfloat16,
    config: dict | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """fused_gemm_a8w8_blockscale_split_cat of gemm_afp4wfp4."""
    name = "fused_gemm_afp4wfp4_split_cat"
    names = ("x", "x_scale"), ("w", "w_scale")
    return _of_fp4(
        name, Operand(x, x_scale, False, names[0]), Operand(w, w_scale, False, names[1]), y, S1, S2, dtype
    )


def fused_gemm_afp4wfp4_preshuffle_split_cat(
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    S1: int,
    S2: int,
    dtype: torch.dtype = torch.bfloat16,
    config: dict | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """fused_gemm_afp4wfp4_split_cat of operands as in gemm_afp4wfp4_preshuffled_weight_scales."""
    name = "fused_gemm_afp4wfp4_preshuffle_split_cat"
    operands = preshuffled_operands(name, x, w, x_scale, w_scale, ("x", "w", "x_scale", "w_scale"))
    return _of_fp4(name, *operands, y, S1, S2, dtype)


def _of_fp8(name, x, w, y, x_scale, w_scale, s1, s2, dtype):
    check_operands(name, {"x": x, "w": w})
    _gemm_blockscale.check_scales(name, x, w, x_scale=x_scale, w_scale=w_scale)
    _check(name, x.shape[0], shape_of_weights(w)[0], y, s1, s2, dtype)
    operands = _gemm_blockscale.operands_of(x, w, x_scale, w_scale)
    return _joined(operands, {"recipe": _gemm_blockscale.RECIPE}, y, s1, dtype)


def _of_fp4(name, x: Operand, w: Operand, y, s1, s2, dtype):
    _gemm_fp4.check_product(name, x, w)
    _check(name, x.rows, w.rows, y, s1, s2, dtype)
    operands, options = _gemm_fp4.operands_of(x, w)
    return _joined(operands, options, y, s1, dtype)


def _check(name: str, m: int, n: int, y: torch.Tensor, s1: int, s2: int, dtype: torch.dtype) -> None:
    where = f"hipkittens.aiter.{name}"
    check_tensor(where, "y", y)
    check_output(name, dtype)
    for argument, size in (("S1", s1), ("S2", s2)):
        check_whole_number(where, argument, size)
        if size < 0:
            raise ValueError(f"{where}: {argument} is {size}; it must be 0 or more")
    if y.dim() != 3 or y.shape[0] != m:
        raise ValueError(f"{where}: y has shape {tuple(y.shape)}; it must be ({m}, heads, features)")
    if n != y.shape[1] * (s1 + s2):
        raise ValueError(
            f"{where}: w has {n} rows; {y.shape[1]} heads, as y has them, of S1 {s1} and S2 {s2} features are "
            f"{y.shape[1] * (s1 + s2)}"
        )


def _joined(
    operands, options, y: torch.Tensor, s1: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    return scaled_matmul_concat_heads(*operands, y.to(dtype), s1, **options)
