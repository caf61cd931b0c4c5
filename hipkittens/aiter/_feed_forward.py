# SPDX-License-Identifier: MIT
"""Feed-forward blocks by AITER's names: x (M, K), w_up (N, K) and w_down (N, K), or (N / 2, K) if the first half of w_up is the gate. AITER
adds parts of the second GEMM with atomics to a zeroed y; here sums have one fixed order, and y is written once. config only chooses among
AITER's own kernels.
"""

from __future__ import annotations

import torch

from .. import gated_linear, linear, matmul
from .._arguments import check_tensor
from ._operands import check_operands
from ._product_activations import product_activation
from ._results import check_place, placed, put


def gemm_a16w16_gated(
    x: torch.Tensor,
    w: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """activation(x @ w[:N / 2].T) * (x @ w[N / 2:].T), into y if it is passed. activation: "gelu", "gelu_tanh", "silu", "silu_exp2",
    "relu", or None for the gate itself.
    """
    name = "gemm_a16w16_gated"
    _check_gates(name, "w", x, w)
    check_place(name, "y", y, x.shape[0], w.shape[0] // 2)
    return placed(name, "y", y, _gated(name, x, w, activation, dtype if y is None else y.dtype))


def ff_a16w16_gated(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    intermediate: torch.Tensor | None = None,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """gemm_a16w16_gated(x, w_up) @ w_down; the hidden values are written to intermediate if it is passed."""
    return _block("ff_a16w16_gated", True, x, w_up, w_down, dtype, intermediate, y, activation)


def ff_a16w16_nogate(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    intermediate: torch.Tensor | None = None,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """activation(x @ w_up.T) @ w_down; the hidden values are written to intermediate if it is passed."""
    return _block("ff_a16w16_nogate", False, x, w_up, w_down, dtype, intermediate, y, activation)


def ff_a16w16_fused_gated(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """ff_a16w16_gated in two launches, where AITER has one."""
    return _block("ff_a16w16_fused_gated", True, x, w_up, w_down, dtype, None, y, activation)


def ff_a16w16_fused_ungated(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """ff_a16w16_nogate in two launches, where AITER has one."""
    return _block("ff_a16w16_fused_ungated", False, x, w_up, w_down, dtype, None, y, activation)


def _block(
    name: str,
    gated: bool,
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
    dtype: torch.dtype,
    intermediate: torch.Tensor | None,
    y: torch.Tensor | None,
    activation: str | None,
) -> torch.Tensor:
    if gated:
        _check_gates(name, "w_up", x, w_up)
    else:
        check_operands(name, {"x": x, "w_up": w_up})
    tokens, inner = x.shape[0], w_up.shape[0] // 2 if gated else w_up.shape[0]
    check_tensor(f"hipkittens.aiter.{name}", "w_down", w_down)
    if w_down.dim() != 2 or w_down.shape[0] != inner:
        raise ValueError(
            f"hipkittens.aiter.{name}: w_down has shape {tuple(w_down.shape)}; w_up {tuple(w_up.shape)} needs ({inner}, columns of y)"
        )
    check_place(name, "intermediate", intermediate, tokens, inner)
    check_place(name, "y", y, tokens, w_down.shape[1])
    hidden = (
        _gated(name, x, w_up, activation, x.dtype)
        if gated
        else linear(x, w_up, activation=product_activation(name, activation))
    )
    if intermediate is not None:
        put(name, "intermediate", intermediate, hidden)
    return placed(name, "y", y, matmul(hidden, w_down, out_dtype=dtype if y is None else y.dtype))


def _check_gates(name: str, weight: str, x: torch.Tensor, w: torch.Tensor) -> None:
    check_operands(name, {"x": x, weight: w})
    if w.shape[0] % 2:
        raise ValueError(f"hipkittens.aiter.{name}: {weight} has {w.shape[0]} rows; it needs an even number")


def _gated(
    name: str, x: torch.Tensor, w: torch.Tensor, activation: str | None, dtype: torch.dtype
) -> torch.Tensor:
    kind = product_activation(name, activation)
    if kind is not None:
        return gated_linear(x, w, None, kind, out_dtype=dtype)
    gate, other = matmul(x, w.t(), out_dtype=torch.float32).chunk(2, -1)
    return (gate * other).to(dtype)
