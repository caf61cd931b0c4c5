# SPDX-License-Identifier: MIT
"""GEMMs of bfloat16 and float16 by the names of AITER's Triton kernels: x (M, K) and w (N, K). Products, bias and activation are float32
and rounded once. config and splitK only choose among AITER's own kernels.
"""

from __future__ import annotations

import torch

from .. import grouped_matmul, linear, matmul
from ._operands import check_operands, with_elements
from ._product_activations import product_activation
from ._results import check_place, placed


def gemm_a16w16(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    activation: str | None = None,
    skip_reduce: bool = False,
) -> torch.Tensor:
    """activation(x @ w.T + bias), into y if it is passed, in y's dtype. activation: "gelu", "gelu_tanh", "silu", "silu_exp2", "relu"
    or None. skip_reduce: AITER then returns the parts of a split K separately, (parts, M, N); here, as in AITER without a split, the result
    is complete.
    """
    name = "gemm_a16w16"
    check_operands(name, {"x": x, "w": w})
    check_place(name, "y", y, x.shape[0], w.shape[0])
    kind = product_activation(name, activation)
    out_dtype = dtype if y is None else y.dtype
    bias = with_elements(name, "bias", bias, w.shape[0])
    return placed(name, "y", y, linear(x, w, bias, activation=kind, out_dtype=out_dtype))


def gemm_a16w16_atomic(
    x: torch.Tensor,
    w: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    """x @ w.T, into y if it is passed. AITER adds the parts of K to y with atomics, in y's dtype and in any order, and needs a zeroed y;
    here they are added in float32, in one order, and the contents of y are replaced.
    """
    name = "gemm_a16w16_atomic"
    check_operands(name, {"x": x, "w": w})
    check_place(name, "y", y, x.shape[0], w.shape[0])
    return placed(name, "y", y, matmul(x, w.t(), out_dtype=dtype if y is None else y.dtype))


def batched_gemm_bf16(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    splitK: int | None = None,
    YQ: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    """XQ[i] @ WQ[i].T + bias[i] of XQ (B, M, K), WQ (B, N, K) and bias (B, 1, N), in one launch, into YQ (B, M, N) if it is passed."""
    return _batched("batched_gemm_bf16", XQ, WQ, bias, dtype, YQ)


def batched_gemm_bf16_CK(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    splitK: int | None = None,
) -> torch.Tensor:
    """batched_gemm_bf16."""
    return _batched("batched_gemm_bf16_CK", XQ, WQ, bias, dtype, None)


def _batched(
    name: str,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    y: torch.Tensor | None,
) -> torch.Tensor:
    check_operands(name, {"XQ": x, "WQ": w}, 3)
    check_place(name, "YQ", y, *x.shape[:2], w.shape[1])
    bias = with_elements(name, "bias", bias, w.shape[0], w.shape[1])
    out_dtype = dtype if y is None else y.dtype
    return placed(name, "YQ", y, grouped_matmul(x, w.mT, bias=bias, out_dtype=out_dtype))
