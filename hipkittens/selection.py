# SPDX-License-Identifier: MIT
"""Top-k selection: the largest or smallest elements of rows, and their positions."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_flag, check_tensor, check_whole_number
from ._call import call

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MOST = 2048  # most_selected of csrc/kernels/topk/kinds.h


@_backend.interruptible
def topk(
    x: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    row_starts: torch.Tensor | None = None,
    row_ends: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest elements along `dim` and their int64 positions, like torch.topk, with ties in order of position.

    - `x`: float32, bfloat16 or float16, any number of columns and any strides.
    - `k`: up to 2048, and no more than the number of columns.
    - `largest`: if False, return the k smallest.
    - `sorted`: if False, the order of the results is unspecified.
    - `row_starts`, `row_ends`: int32 or int64, one for each row, which limit it to x[row, row_starts[row] : row_ends[row]], clipped to the
      existing columns. Positions are still those in x. If a row has fewer than k elements, the remaining positions are -1 and values -inf
      (largest=False: NaN). Only with dim=-1.

    As in PyTorch every NaN is greater than infinity, and -0 equals 0. Of equal elements the first are selected, and they come first. Values
    are bit-identical to those of x, and differentiable.

    Rows of more than 16384 columns, and few rows of more than 4096, take two passes or more, with k candidates for each part of a row in
    between. Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.topk"
    check_tensor(where, "x", x)
    check_dtype_and_device(where, "x", x, DTYPES, "x", x)
    check_whole_number(where, "k", k)
    check_whole_number(where, "dim", dim)
    check_flag(where, "largest", largest)
    check_flag(where, "sorted", sorted)
    if x.dim() == 0:
        raise ValueError(f"{where}: x has shape (); it needs at least 1 dimension")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(
            f"{where}: dim is {dim}; x has {x.dim()} dimensions, so {-x.dim()} to {x.dim() - 1} are allowed"
        )
    columns = x.shape[dim]
    if not 0 <= k <= columns:
        raise ValueError(
            f"{where}: k is {k}; dimension {dim} of x has {columns} elements, so 0 to {columns} are allowed"
        )
    if k > MOST:
        raise ValueError(f"{where}: k is {k}; allowed: up to {MOST}. Sort the rows instead: torch.sort")
    bounds = [
        _bounds(where, name, bounds, x, dim)
        for name, bounds in (("row_starts", row_starts), ("row_ends", row_ends))
    ]
    _backend.check_device(where, "x", x)
    along = x.movedim(dim, -1)
    if _backend.uses_torch():
        values, indices = in_torch(along, k, largest, *bounds)
    else:
        values, indices = call("topk", along, k, bool(largest), bool(sorted), *bounds)
    return values.movedim(-1, dim), indices.movedim(-1, dim)


def _bounds(
    where: str, name: str, bounds: torch.Tensor | None, x: torch.Tensor, dim: int
) -> torch.Tensor | None:
    if bounds is None:
        return None
    check_tensor(where, name, bounds)
    check_dtype_and_device(where, name, bounds, (torch.int32, torch.int64), "x", x)
    if dim % x.dim() != x.dim() - 1:
        raise ValueError(
            f"{where}: {name} is given and dim is {dim}; rows are limited along the last dimension only"
        )
    if bounds.shape != x.shape[:-1]:
        raise ValueError(
            f"{where}: {name} has shape {tuple(bounds.shape)}; it needs {tuple(x.shape[:-1])}, one for each row"
        )
    return bounds.clamp(0, x.shape[-1]).to(torch.int32).contiguous()


def in_torch(x, k, largest=True, row_starts=None, row_ends=None):
    """By a stable sort, which keeps equal elements in order."""
    columns = torch.arange(x.shape[-1], device=x.device)
    here = torch.ones_like(x, dtype=torch.bool)
    if row_starts is not None:
        here = here & (columns >= row_starts[..., None])
    if row_ends is not None:
        here = here & (columns < row_ends[..., None])
    indices = x.sort(stable=True, dim=-1, descending=largest).indices
    # Missing elements of a row come after all existing ones.
    absent = ~here.gather(-1, indices)
    order = absent.sort(stable=True, dim=-1).indices[..., :k]
    indices, absent = indices.gather(-1, order), absent.gather(-1, order)
    values = x.gather(-1, indices).masked_fill(absent, float("-inf") if largest else float("nan"))
    return values, indices.masked_fill(absent, -1)
