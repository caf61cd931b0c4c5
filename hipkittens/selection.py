# SPDX-License-Identifier: MIT
"""The greatest or smallest elements of rows, and where they are."""

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
    """The k greatest elements along `dim` and their int64 positions: torch.topk, with ties in order of position.

    x is float32, bfloat16 or float16, of any number of columns and any strides; k is up to 2048, and no more than there are
    columns. As in PyTorch every NaN is greater than infinity, and -0 and 0 are equal; of equal elements the first are taken, and
    they come first. With largest=False the k smallest. sorted=False leaves their order open. Values are x's own bits, and
    differentiable.

    row_starts, row_ends: int32 or int64, one for each row, which limit it to x[row, row_starts[row] : row_ends[row]], cut to the
    columns that there are. Positions are still those in x. Where a row has no k elements, positions are -1 and values -inf
    (largest=False: NaN). Only with dim=-1.

    Rows of more than 16384 columns, and few rows of more than 4096, take two passes or more, with k candidates of each part of a
    row in between. Raises TypeError or ValueError, before anything is launched, for what has no kernel.
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
    # What a row does not have comes behind all that it has.
    absent = ~here.gather(-1, indices)
    order = absent.sort(stable=True, dim=-1).indices[..., :k]
    indices, absent = indices.gather(-1, order), absent.gather(-1, order)
    values = x.gather(-1, indices).masked_fill(absent, float("-inf") if largest else float("nan"))
    return values, indices.masked_fill(absent, -1)
