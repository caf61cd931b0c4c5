# SPDX-License-Identifier: MIT
"""Feed-forward blocks by AITER's names: x (M, K), w_up (N, K) and w_down (N, K), or (N / 2, K) where the first half of w_up makes the
gates. AITER adds parts of the second product with atomics into a y that it has cleared; here the sums have one order, and y is written
once. config chooses among AITER's own kernels."""

from __future__ import annotations

import torch

from .. import gated_linear, linear, matmul
from ._results import placed, put


def gemm_a16w16_gated(
    x: torch.Tensor,
    w: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """activation(x @ w[:N / 2].T) * (x @ w[N / 2:].T), into y if there is one. activation: "gelu", "gelu_tanh", "silu", "silu_exp2",
    "relu", or None for the gate itself."""
    name = "gemm_a16w16_gated"
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
    """gemm_a16w16_gated(x, w_up) @ w_down; what is between is written to intermediate if there is one."""
    name = "ff_a16w16_gated"
    hidden = _gated(name, x, w_up, activation, x.dtype)
    return _down(name, hidden, w_down, dtype, intermediate, y)


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
    """activation(x @ w_up.T) @ w_down; what is between is written to intermediate if there is one."""
    name = "ff_a16w16_nogate"
    hidden = linear(x, w_up, activation=_kind(name, activation))
    return _down(name, hidden, w_down, dtype, intermediate, y)


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
    name = "ff_a16w16_fused_gated"
    return _down(name, _gated(name, x, w_up, activation, x.dtype), w_down, dtype, None, y)


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
    name = "ff_a16w16_fused_ungated"
    hidden = linear(x, w_up, activation=_kind(name, activation))
    return _down(name, hidden, w_down, dtype, None, y)


def _kind(name: str, activation: str | None) -> str | None:
    allowed = ("gelu", "gelu_tanh", "silu", "silu_exp2", "relu")
    if activation is not None and activation not in allowed:
        raise ValueError(
            f"hipkittens.aiter.{name}: activation is {activation!r}; allowed: None, {', '.join(map(repr, allowed))}"
        )
    return "silu" if activation == "silu_exp2" else activation


def _gated(
    name: str, x: torch.Tensor, w: torch.Tensor, activation: str | None, dtype: torch.dtype
) -> torch.Tensor:
    kind = _kind(name, activation)
    if kind is not None:
        return gated_linear(x, w, None, kind, out_dtype=dtype)
    if w.shape[0] % 2:
        raise ValueError(f"hipkittens.aiter.{name}: w has {w.shape[0]} rows; it needs an even number")
    gate, other = matmul(x, w.t(), out_dtype=torch.float32).chunk(2, -1)
    return (gate * other).to(dtype)


def _down(
    name: str,
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    dtype: torch.dtype,
    intermediate: torch.Tensor | None,
    y: torch.Tensor | None,
) -> torch.Tensor:
    if intermediate is not None:
        put(name, "intermediate", intermediate, hidden)
    result = matmul(hidden, w_down, out_dtype=dtype if y is None else y.dtype)
    return placed(name, "y", y, result)
