# SPDX-License-Identifier: MIT
"""How weights lie in panels: the first 16 bytes of each row of a panel behind each other, then the next 16 of each."""

from __future__ import annotations

import torch

from ._arguments import check_tensor

CHUNK = 16  # bytes of a row
PANEL_ROWS = (16, 32)


def in_rows(where: str, name: str, panels: torch.Tensor) -> torch.Tensor:
    check_tensor(where, name, panels)
    shape = shape_in_rows(where, name, panels)
    stored = panels.view(torch.uint8) if panels.itemsize == 1 else panels
    return stored.transpose(-3, -2).reshape(shape).view(panels.dtype)


def seen_as_rows(where: str, name: str, panels: torch.Tensor) -> torch.Tensor:
    """Elements of panels in the shape of rows, though not in their order: for what asks about shapes, dtypes and devices alone."""
    return panels.view(shape_in_rows(where, name, panels))


def shape_in_rows(where: str, name: str, panels: torch.Tensor) -> tuple[int, ...]:
    """Of contiguous panels; ValueError for others."""
    if (
        panels.dim() < 4
        or panels.shape[-2] not in PANEL_ROWS
        or panels.shape[-1] * panels.itemsize != CHUNK
        or not panels.is_contiguous()
    ):
        raise ValueError(
            f"{where}: {name} has shape {tuple(panels.shape)}, strides {panels.stride()} and dtype {panels.dtype}; weights in panels are "
            "contiguous, (..., N / 16, bytes of a row / 16, 16, elements of 16 bytes), as hipkittens.preshuffle has them"
        )
    *matrices, count, chunks, rows, chunk = panels.shape
    return *matrices, count * rows, chunks * chunk


def panels_of_rows(shuffled_rows: torch.Tensor, panel_rows: int = 16) -> torch.Tensor:
    """Bytes that are in panels already, of a tensor whose shape is that of rows (..., N, K): as AITER has them."""
    *matrices, rows, length = shuffled_rows.shape
    chunk = CHUNK // shuffled_rows.itemsize
    shape = (*matrices, rows // panel_rows, length // chunk, panel_rows, chunk)
    return shuffled_rows.contiguous().view(shape)


def as_b(weights: torch.Tensor) -> torch.Tensor:
    """Weights (N, K) or (G, N, K), or these in panels, as products take them for b."""
    return weights if weights.dim() > 3 else weights.mT


def shape_of_weights(weights: torch.Tensor, where: str = "hipkittens", name: str = "w") -> torch.Size:
    """(N, K) or (G, N, K), of panels, too. ValueError, of the argument `name` of `where`, for more dimensions that are none."""
    return weights.shape if weights.dim() <= 3 else torch.Size(shape_in_rows(where, name, weights))
