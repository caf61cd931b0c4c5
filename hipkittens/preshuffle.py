# SPDX-License-Identifier: MIT
"""Weights in panels, the order in which AITER keeps them: from rows, and back."""

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
    """Weights (..., N, K) in panels, (..., N / panel_rows, bytes of a row / 16, panel_rows, elements of 16 bytes): a copy.

    w           weights of any dtype: codes of 8 bits, two of 4 bits in a byte, bfloat16 or float16. Rows are 16 bytes or a multiple
    scales      e8m0 scales (..., N, K / 32) of such weights, which are then returned, too, in the order that the kernels want with
                swizzle="shuffled"
    panel_rows  16, or 32, which divides N

    These are the bytes of AITER's shuffle_weight(w, layout=(panel_rows, 16)), and the shape says so: `scaled_matmul` and
    `grouped_matmul` take the result for b, `moe` for w1 and w2, and multiply without a copy, with the same results as of rows. What a tile
    needs of a panel is one piece of memory, wherever K ends: rows of which K is no multiple of 128 bytes are faster so.
    `unshuffle` has the rows back. There is no derivative. Raises TypeError or ValueError for shapes and dtypes that do not fit.
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
    """The rows (..., N, K) of weights that `preshuffle` has brought into panels: a copy. Raises ValueError for what is none."""
    return in_rows("hipkittens.unshuffle", "panels", panels)
