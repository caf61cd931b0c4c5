# SPDX-License-Identifier: MIT
"""Pairs of GEMMs, in two launches, and GEMMs followed by a multiplication and addition, in one, by AITER's names. What is multiplied and
added to is float32, and the result is rounded once. config and use_aot only choose among AITER's own kernels; with skip_reduce results are
complete, as in AITER if K is not split.
"""

from __future__ import annotations

import torch

from .. import matmul
from .._arguments import number
from ..scaled_gemm import OUTPUT_DTYPES
from ..scaled_gemm_fused import multiply_add
from . import _gemm_blockscale, _gemm_fp4
from ._gemm_fp4 import Operand, preshuffled_operands, w_of, x_of
from ._operands import (
    check_has_mxfp4,
    check_operands,
    check_output,
    check_shape,
    with_elements,
)
from ._results import check_place, placed


def fused_gemm_a8w8_blockscale_a16w16(
    x_fp8: torch.Tensor,
    w_fp8: torch.Tensor,
    x_fp8_scale: torch.Tensor,
    w_fp8_scale: torch.Tensor,
    x_bf16: torch.Tensor,
    w_bf16: torch.Tensor,
    bias_fp8: torch.Tensor | None = None,
    bias_bf16: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    y_fp8: torch.Tensor | None = None,
    y_bf16: torch.Tensor | None = None,
    skip_reduce: bool = False,
    config: dict | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(gemm_a8w8_blockscale of the first four + bias_fp8, x_bf16 @ w_bf16.T + bias_bf16), into y_fp8 and y_bf16 if they are passed."""
    name = "fused_gemm_a8w8_blockscale_a16w16"
    check_operands(name, {"x_fp8": x_fp8, "w_fp8": w_fp8})
    _gemm_blockscale.check_scales(name, x_fp8, w_fp8, x_fp8_scale=x_fp8_scale, w_fp8_scale=w_fp8_scale)
    check_place(name, "y_fp8", y_fp8, x_fp8.shape[0], w_fp8.shape[0])
    _check_beside(name, x_fp8.shape[0], x_fp8.shape[1], x_bf16, w_bf16, y_bf16)
    biases = with_elements(name, "bias_fp8", bias_fp8, w_fp8.shape[0])
    first = _gemm_blockscale.product(
        x_fp8, w_fp8, x_fp8_scale, w_fp8_scale, dtype if y_fp8 is None else y_fp8.dtype, biases
    )
    second = _beside(name, x_bf16, w_bf16, bias_bf16, dtype, y_bf16)
    return placed(name, "y_fp8", y_fp8, first), second


def fused_gemm_afp4wfp4_a16w16(
    x_fp4: torch.Tensor,
    w_fp4: torch.Tensor,
    x_fp4_scale: torch.Tensor,
    w_fp4_scale: torch.Tensor,
    x_bf16: torch.Tensor,
    w_bf16: torch.Tensor,
    is_fp4_preshuffled: bool = True,
    bias_fp4: torch.Tensor | None = None,
    bias_bf16: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    y_fp4: torch.Tensor | None = None,
    y_bf16: torch.Tensor | None = None,
    skip_reduce: bool = False,
    config: dict | None = None,
    use_aot: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(gemm_afp4wfp4 of the first four + bias_fp4, x_bf16 @ w_bf16.T + bias_bf16), into y_fp4 and y_bf16 if they are passed.
    is_fp4_preshuffled: weight and scales as in gemm_afp4wfp4_preshuffled_weight_scales.
    """
    name = "fused_gemm_afp4wfp4_a16w16"
    names = ("x_fp4", "w_fp4", "x_fp4_scale", "w_fp4_scale")
    check_has_mxfp4(name, x_fp4)
    if is_fp4_preshuffled:
        x, w = preshuffled_operands(name, x_fp4, w_fp4, x_fp4_scale, w_fp4_scale, names)
    else:
        x, w = Operand(x_fp4, x_fp4_scale, False, names[::2]), Operand(w_fp4, w_fp4_scale, False, names[1::2])
    check_operands(name, {"x_fp4": x.codes, "w_fp4": w.codes})
    _check_beside(name, x_fp4.shape[0], 2 * x_fp4.shape[1], x_bf16, w_bf16, y_bf16)
    bias = with_elements(name, "bias_fp4", bias_fp4, w.rows)
    first = _gemm_fp4.product(name, x, w, dtype, y_fp4, bias, "y_fp4")
    return first, _beside(name, x_bf16, w_bf16, bias_bf16, dtype, y_bf16)


def fused_gemm_a8w8_blockscale_mul_add(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    a: torch.Tensor | float,
    b: torch.Tensor | float,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    fuse_type: int = 0,
) -> torch.Tensor:
    """a * c + b of c, gemm_a8w8_blockscale of the first four, or with fuse_type 1 a * b + c, into y if it is passed. a and b: a number, or
    a tensor of 1 or of M N elements.
    """
    name = "fused_gemm_a8w8_blockscale_mul_add"
    check_operands(name, {"x": x, "w": w})
    _gemm_blockscale.check_scales(name, x, w, x_scales=x_scales, w_scales=w_scales)
    operands = _gemm_blockscale.operands_of(x, w, x_scales, w_scales)
    shape = x.shape[0], w.shape[0]
    return _mul_add(name, operands, {"recipe": _gemm_blockscale.RECIPE}, shape, a, b, dtype, y, fuse_type)


def fused_gemm_afp4wfp4_mul_add(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    a: torch.Tensor | float,
    b: torch.Tensor | float,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    fuse_type: int = 0,
) -> torch.Tensor:
    """fused_gemm_a8w8_blockscale_mul_add of c, gemm_afp4wfp4 of the first four."""
    name = "fused_gemm_afp4wfp4_mul_add"
    return _fp4_mul_add(name, x_of(x, x_scales), w_of(w, w_scales), a, b, dtype, y, fuse_type)


def fused_gemm_afp4wfp4_preshuffle_add_mul(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    a: torch.Tensor | float,
    b: torch.Tensor | float,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    use_aot: bool = True,
    fuse_type: int = 0,
) -> torch.Tensor:
    """fused_gemm_afp4wfp4_mul_add of operands as in gemm_afp4wfp4_preshuffled_weight_scales."""
    name = "fused_gemm_afp4wfp4_preshuffle_add_mul"
    operands = preshuffled_operands(name, x, w, x_scales, w_scales)
    return _fp4_mul_add(name, *operands, a, b, dtype, y, fuse_type)


def _mul_add(name, operands, options, shape, a, b, dtype, y, fuse_type) -> torch.Tensor:
    """a c + b, or a b + c, of the product c of these operands, which has this shape."""
    if fuse_type not in (0, 1):
        raise ValueError(
            f"hipkittens.aiter.{name}: fuse_type is {fuse_type!r}; allowed: 0 (a c + b), 1 (a b + c)"
        )
    check_place(name, "y", y, *shape)
    out_dtype = dtype if y is None else y.dtype
    check_output(name, out_dtype)
    factor, addend = (_factor(name, argument, value, *shape) for argument, value in (("a", a), ("b", b)))
    result = multiply_add(
        f"hipkittens.aiter.{name}",
        operands,
        factor,
        addend,
        adds_result=bool(fuse_type),
        out_dtype=out_dtype,
        **options,
    )
    return placed(name, "y", y, result)


def _factor(name: str, argument: str, value: torch.Tensor | float, m: int, n: int) -> torch.Tensor | float:
    """A number, or a tensor of one element or of (M, N)."""
    if not isinstance(value, torch.Tensor):
        return number(f"hipkittens.aiter.{name}", argument, value)
    value = value if value.dtype in OUTPUT_DTYPES else value.float()
    return value.view(1) if value.numel() == 1 else with_elements(name, argument, value, m, n)


def _fp4_mul_add(name, x: Operand, w: Operand, a, b, dtype, y, fuse_type) -> torch.Tensor:
    _gemm_fp4.check_product(name, x, w)
    operands, options = _gemm_fp4.operands_of(x, w)
    return _mul_add(name, operands, options, (x.rows, w.rows), a, b, dtype, y, fuse_type)


def _check_beside(name, m: int, k: int, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor | None) -> None:
    """Checks the 16-bit operands that accompany M rows of K quantized values."""
    check_operands(name, {"x_bf16": x, "w_bf16": w})
    check_shape(name, "x_bf16", x, (m, k))
    check_place(name, "y_bf16", y, m, w.shape[0])


def _beside(name, x, w, bias, dtype, y) -> torch.Tensor:
    bias = with_elements(name, "bias_bf16", bias, w.shape[0])
    product = matmul(x, w.t(), bias=bias, out_dtype=dtype if y is None else y.dtype)
    return placed(name, "y_bf16", y, product)
