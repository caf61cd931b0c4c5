# SPDX-License-Identifier: MIT
"""Pairs of GEMMs, and GEMMs followed by a multiplication and addition, by AITER's names, each step in a separate launch. What is multiplied
and added to is float32, and the result is rounded once. config and use_aot only choose among AITER's own kernels; with skip_reduce results
are complete, as in AITER if K is not split.
"""

from __future__ import annotations

import torch

from .. import matmul, mul_add
from .._arguments import number
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
    follow = _MulAdd(name, a, b, x.shape[0], w.shape[0], dtype, y, fuse_type)
    return follow(_gemm_blockscale.product(x, w, x_scales, w_scales, torch.float32))


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


class _MulAdd:
    """What is applied to a product c (M, N) in float32: the arguments are checked on construction, before anything is launched."""

    def __init__(self, name, a, b, m, n, dtype, y, fuse_type) -> None:
        if fuse_type not in (0, 1):
            raise ValueError(
                f"hipkittens.aiter.{name}: fuse_type is {fuse_type!r}; allowed: 0 (a c + b), 1 (a b + c)"
            )
        check_place(name, "y", y, m, n)
        self.dtype = dtype if y is None else y.dtype
        check_output(name, self.dtype)
        self.name, self.y, self.behind = name, y, bool(fuse_type)
        self.a, self.b = (_factor(name, argument, value, m, n) for argument, value in (("a", a), ("b", b)))

    def __call__(self, c: torch.Tensor) -> torch.Tensor:
        a, b = self.a, self.b
        if not self.behind:
            total = mul_add(c, a, b)
        elif isinstance(a, torch.Tensor) and a.shape == c.shape:
            total = mul_add(a, b, c)
        elif isinstance(b, torch.Tensor) and b.shape == c.shape:
            total = mul_add(b, a, c)
        else:  # a b is one number for all
            total = mul_add(c, 1.0, a * b)
        return placed(self.name, "y", self.y, total.to(self.dtype))


def _factor(name: str, argument: str, value: torch.Tensor | float, m: int, n: int) -> torch.Tensor | float:
    """A number, or a float32 tensor of one element or of (M, N)."""
    if not isinstance(value, torch.Tensor):
        return number(f"hipkittens.aiter.{name}", argument, value)
    if value.numel() == 1:
        return value.float()
    return with_elements(name, argument, value, m, n).float()


def _fp4_mul_add(name, x: Operand, w: Operand, a, b, dtype, y, fuse_type) -> torch.Tensor:
    check_operands(name, {"x": x.codes, "w": w.codes})
    follow = _MulAdd(name, a, b, x.rows, w.rows, dtype, y, fuse_type)
    return follow(_gemm_fp4.product(name, x, w, torch.float32))


def _check_beside(name, m: int, k: int, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor | None) -> None:
    """Checks the 16-bit operands that accompany M rows of K quantized values."""
    check_operands(name, {"x_bf16": x, "w_bf16": w})
    check_shape(name, "x_bf16", x, (m, k))
    check_place(name, "y_bf16", y, m, w.shape[0])


def _beside(name, x, w, bias, dtype, y) -> torch.Tensor:
    bias = with_elements(name, "bias_bf16", bias, w.shape[0])
    product = matmul(x, w.t(), bias=bias, out_dtype=dtype if y is None else y.dtype)
    return placed(name, "y_bf16", y, product)
