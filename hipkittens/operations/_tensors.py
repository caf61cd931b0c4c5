# SPDX-License-Identifier: MIT
"""Input tensors for the checks of operations."""

from __future__ import annotations

import torch


def draw(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal values that require a gradient, the same in each call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()


def ends_of(sizes) -> torch.Tensor:
    """offs of groups of these sizes."""
    return torch.tensor(sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32)


def even_ends(total: int, groups: int, device: str = "cpu") -> torch.Tensor:
    """offs of groups that are as equal as whole numbers allow."""
    return torch.tensor(
        [total * (group + 1) // groups for group in range(groups)], dtype=torch.int32, device=device
    )


def with_gaps(value: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """The same values in rows with NaN before and after them."""
    if not before and not after:
        return value
    columns = value.shape[-1]
    wide = torch.full((*value.shape[:-1], before + columns + after), float("nan"), dtype=value.dtype)
    wide[..., before : before + columns] = value
    return wide[..., before : before + columns]


def long_enough(k: int) -> int:
    """A K of at least 1500 that leaves the last K tile of a product as full as this one does."""
    return k if k >= 1500 else k + 2048
