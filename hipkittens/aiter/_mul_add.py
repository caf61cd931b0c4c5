# SPDX-License-Identifier: MIT
"""Multiply-add by AITER's name."""

from __future__ import annotations

import torch

from .. import mul_add
from ._results import refuse


def fused_mul_add(
    x: torch.Tensor,
    a: float | torch.Tensor,
    b: float | torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """a * x + b, rounded once, into out, or into x without one. a and b: a number, or a tensor of 1 or of x.numel() elements."""
    name = "fused_mul_add"
    for given, tensor in (("x", x), ("a", a), ("b", b), ("out", out)):
        if isinstance(tensor, torch.Tensor) and not tensor.is_contiguous():
            refuse(name, given, "not contiguous", "call contiguous() on it, or use hipkittens.mul_add")
    factor, summand = (_like(each, x) for each in (a, b))
    into = x if out is None else out
    mul_add(x, factor, summand, _like(into, x))
    return into


def _like(value, x):
    """In x's shape, if it has as many elements."""
    return value.view(x.shape) if isinstance(value, torch.Tensor) and value.numel() == x.numel() else value
