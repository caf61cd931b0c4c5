# SPDX-License-Identifier: MIT
"""Preshuffled weights (panel layout), AITER's order for weights: conversion from rows and back."""

from __future__ import annotations

from typing import overload

import torch

from ._arguments import check_gets_no_gradient, check_tensor
from ._panels import CHUNK, PANEL_ROWS, in_rows
from .scaled_gemm import shuffled


@overload
def preshuffle(w: torch.Tensor, scales: None = None, *, panel_rows: int = 16) -> torch.Tensor: ...
@overload
def preshuffle(
    w: torch.Tensor, scales: torch.Tensor, *, panel_rows: int = 16
) -> tuple[torch.Tensor, torch.Tensor]: ...
def preshuffle(
    w: torch.Tensor, scales: torch.Tensor | None = None, *, panel_rows: int = 16
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Reorder weights (..., N, K) into the panel layout that the kernels read fastest: AITER's preshuffled weights.

    The result is a copy, (..., N / panel_rows, bytes of a row / 16, panel_rows, elements of 16 bytes).

    - `w`: weights of any dtype: 8-bit quantized values, two 4-bit values in a byte, bfloat16 or float16. The size of a row is a multiple of
      16 bytes.
    - `scales`: e8m0 scales (..., N, K / 32) of such weights. They are then returned as well, in the order that the kernels read with
      swizzle="shuffled".
    - `panel_rows`: 16 or 32; a divisor of N.

    The bytes are those of AITER's shuffle_weight(w, layout=(panel_rows, 16)), and the shape tells the layout: `scaled_matmul` and
    `grouped_matmul` accept the result as b, `moe` as w1 and w2, and read it without a copy, with the same results as from rows. A tile
    reads one contiguous block of each panel, wherever K ends, so rows whose size is not a multiple of 128 bytes are faster in this layout.

    `unshuffle` restores the rows. Not differentiable. Raises TypeError or ValueError for shapes and dtypes that are not supported.
    """
    where = "hipkittens.preshuffle"
    check_tensor(where, "w", w)
    check_gets_no_gradient(where, "w", w)
    if panel_rows not in PANEL_ROWS:
        raise ValueError(f"{where}: panel_rows is {panel_rows!r}; allowed: 16, 32")
    width = w.shape[-1] * w.itemsize if w.dim() else 0
    if w.dim() < 2 or w.shape[-2] % panel_rows or width % CHUNK or w.itemsize > 2:
        raise ValueError(
            f"{where}: w has shape {tuple(w.shape)} and dtype {w.dtype}; it needs (..., N, K), N a multiple of {panel_rows}, rows of "
            f"{CHUNK} bytes or a multiple, of elements of 1 or 2 bytes: pad with zeros"
        )
    *matrices, rows, length = w.shape
    chunk = CHUNK // w.itemsize
    stored = w.contiguous().view(torch.uint8 if w.itemsize == 1 else w.dtype)
    chunks = stored.view(*matrices, rows // panel_rows, panel_rows, length // chunk, chunk)
    panels = chunks.transpose(-3, -2).contiguous().view(w.dtype)
    if scales is None:
        return panels
    check_tensor(where, "scales", scales)
    if scales.dtype not in (torch.uint8, torch.float8_e8m0fnu) or scales.shape[:-1] != w.shape[:-1]:
        raise ValueError(
            f"{where}: scales has shape {tuple(scales.shape)} and dtype {scales.dtype}; it needs e8m0 bytes (torch.uint8 or "
            f"float8_e8m0fnu), ({', '.join(map(str, w.shape[:-1]))}, K / 32)"
        )
    return panels, shuffled(scales).view(scales.dtype)


def unshuffle(panels: torch.Tensor) -> torch.Tensor:
    """Restore the rows (..., N, K) of weights that `preshuffle` reordered; a copy.

    Raises ValueError if `panels` is not in the panel layout.
    """
    return in_rows("hipkittens.unshuffle", "panels", panels)
