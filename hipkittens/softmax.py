# SPDX-License-Identifier: MIT
"""Softmax along a dimension."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_tensor, check_whole_number
from ._call import call

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@_backend.interruptible
def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Softmax along `dim`, like torch.softmax, computed in float32 and rounded to x's dtype.

    Computes exp(x - max x) / sum(exp(x - max x)). `x` is float32, bfloat16 or float16 of any shape, with rows of any length. Rows along the
    last dimension may have any strides between them. For another dimension x is copied first, and the result has that dimension innermost
    in memory. A row that is all -infinity, or contains NaN or +infinity, becomes NaN, as in PyTorch. The derivative is computed from the
    rounded result. Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.softmax"
    check_tensor(where, "x", x)
    check_dtype_and_device(where, "x", x, DTYPES, "x", x)
    check_whole_number(where, "dim", dim)
    dimensions = max(x.dim(), 1)
    if not -dimensions <= dim < dimensions:
        raise ValueError(
            f"{where}: dim is {dim} and x has {x.dim()} dimensions; allowed: {-dimensions} to {dimensions - 1}"
        )
    _backend.check_device(where, "x", x)
    if _backend.uses_torch():
        return torch.softmax(x.float(), dim).to(x.dtype)
    if x.dim() == 0:
        return call("softmax", x.reshape(1)).reshape(())
    if dim in (-1, x.dim() - 1):
        return call("softmax", x)
    return call("softmax", x.movedim(dim, -1)).movedim(-1, dim)
