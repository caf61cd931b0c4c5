# SPDX-License-Identifier: MIT
"""The record of top-k selection; the function is in hipkittens/selection.py."""

from __future__ import annotations

import torch

from ..selection import topk
from ._record import Checks, Function, Operation, Operator
from ._sharding import rowwise


def _fake(x, k, largest, sorted, row_starts, row_ends):
    shape = (*x.shape[:-1], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def _setup(ctx, inputs, output) -> None:
    ctx.shape = inputs[0].shape
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _backward(ctx, grad, _):
    """PyTorch's own operations, which are differentiable again."""
    (indices,) = ctx.saved_tensors
    grad = grad.masked_fill(indices < 0, 0)
    dx = grad.new_zeros(ctx.shape).scatter_add(-1, indices.clamp(min=0), grad)
    return dx, None, None, None, None, None


def _sharding(*arguments):
    """By rows; limits have the dimensions of x except the last."""
    return (
        rowwise(1, 2)(*arguments)
        if arguments[4] is None and arguments[5] is None
        else rowwise(0, 2)(*arguments)[:1]
    )


def _checks() -> Checks:
    from ._topk_checks import CHECKS

    return CHECKS


OPERATION = Operation(
    name="topk",
    folder="topk",
    functions=(Function(topk, lambda tensor, dtype: (tensor(8, 128, dtype=dtype), 4)),),
    operators=(Operator("topk", _fake, _backward, _setup, sharding=_sharding, first_option=1),),
    checks=_checks,
    order=20,
)
