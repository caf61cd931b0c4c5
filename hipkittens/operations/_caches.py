# SPDX-License-Identifier: MIT
"""Paged caches and slots of tokens, for callers of the cache writes."""

from __future__ import annotations

import torch

from ..cache import shapes_of


def caches_of(
    layout: str,
    blocks: int,
    block_size: int,
    heads: int,
    features: int,
    dtype: torch.dtype,
    device: str = "cpu",
) -> list[torch.Tensor]:
    """Caches of zeros."""
    words = {"blocks": blocks, "block_size": block_size}
    sizes = [
        tuple(
            size if isinstance(size, int) else words.get(size) or block_size // (16 // dtype.itemsize)
            for size in shape
        )
        for shape in shapes_of(layout, heads, features, features, dtype.itemsize)
    ]
    return [torch.zeros(size, dtype=torch.uint8, device=device).view(dtype) if dtype.itemsize == 1
            else torch.zeros(size, dtype=dtype, device=device) for size in sizes]  # fmt: skip


def mixed_slots(tokens: int, slots: int) -> torch.Tensor:
    """Slots in random order, some of them negative."""
    order = torch.randperm(slots, generator=torch.Generator().manual_seed(0))[:tokens]
    order[::5] = -1
    return order
