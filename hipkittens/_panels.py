# SPDX-License-Identifier: MIT
"""The panel layout of preshuffled weights: the first 16 bytes of each row of a panel, then the next 16 bytes of each row, and so on."""

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
    """The panels' elements in the shape of rows, though not in their order: for code that only looks at shapes, dtypes and devices."""
    return panels.view(shape_in_rows(where, name, panels))


def shape_in_rows(where: str, name: str, panels: torch.Tensor) -> tuple[int, ...]:
    """The shape of contiguous panels as rows; ValueError for any others."""
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
    """Panels from bytes that are in panel order already, in a tensor with the shape of rows (..., N, K), as in AITER."""
    *matrices, rows, length = shuffled_rows.shape
    chunk = CHUNK // shuffled_rows.itemsize
    shape = (*matrices, rows // panel_rows, length // chunk, panel_rows, chunk)
    return shuffled_rows.contiguous().view(shape)


def as_b(weights: torch.Tensor) -> torch.Tensor:
    """Weights (N, K) or (G, N, K), or these in panels, in the form that products accept as b."""
    return weights if weights.dim() > 3 else weights.mT


def shape_of_weights(weights: torch.Tensor, where: str = "hipkittens", name: str = "w") -> torch.Size:
    """(N, K) or (G, N, K), also for panels. ValueError, for the argument `name` of `where`, if more dimensions are not panels."""
    return weights.shape if weights.dim() <= 3 else torch.Size(shape_in_rows(where, name, weights))
