# SPDX-License-Identifier: MIT
"""The record of gathering rows for experts and combining them; the functions are in hipkittens/experts.py."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..experts import expert_combine, expert_gather
from ._record import Checks, Function, Operation, Operator
from ._sharding import given, replicated

# Gather and combine are each other's transpose, and the gradient of weights is their inner product: each is differentiated by
# the other two, any number of times.


def _fake_gather(x, entries, places, weights):
    return x.new_empty(entries.shape[0], x.shape[1])


def _fake_combine(y, entries, places, weights):
    return y.new_empty(places.shape[0], y.shape[1])


def _fake_dot(rows, tokens, entries, places):
    return rows.new_empty(places.shape, dtype=torch.float32)


def _setup(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward_by(transposed):
    """The backward of gather or combine; `transposed` is the other one."""

    @_backend.interruptible
    def backward(ctx, grad):
        rows, *index, weights = ctx.saved_tensors
        drows = dweights = None
        if ctx.needs_input_grad[0]:
            drows = call(transposed, grad, *index, weights)
        if ctx.needs_input_grad[3]:
            in_order, of_tokens = (grad, rows) if transposed == "expert_combine" else (rows, grad)
            dweights = call("expert_dot", in_order, of_tokens, *index)
        return drows, None, None, dweights

    return backward


@_backend.interruptible
def _dot_backward(ctx, grad):
    rows, tokens, entries, places = ctx.saved_tensors
    drows = dtokens = None
    weights = grad.contiguous()
    if ctx.needs_input_grad[0]:
        drows = call("expert_gather", tokens, entries, places, weights)
    if ctx.needs_input_grad[1]:
        dtokens = call("expert_combine", rows, entries, places, weights)
    return drows, dtokens, None, None


def _columns_or_replicated(x, entries, places, weights):
    """Rows and result may be sharded by columns; other tensors are replicated."""
    from torch.distributed.tensor import Replicate, Shard

    columns = [Shard(1), Replicate(), Replicate(), given(weights, Replicate())]
    return [replicated((x, entries, places, weights), 1), ([Shard(1)], columns)]


def _replicated(*arguments):
    return [replicated(arguments, 1)]


def _checks() -> Checks:
    from ._expert_rows_checks import CHECKS

    return CHECKS


def _order(tensor):
    """entries and places of 8 tokens with 2 choices each: the first choices of all, then the second."""
    pairs = [2 * token + choice for choice in range(2) for token in range(8)]
    like = tensor(1, dtype=torch.int32)
    return like.new_tensor(pairs), like.new_tensor([[token, 8 + token] for token in range(8)])


def _gather_arguments(tensor, dtype):
    return tensor(8, 64, dtype=dtype), *_order(tensor), tensor(8, 2, dtype=torch.float32)


def _combine_arguments(tensor, dtype):
    return tensor(16, 64, dtype=dtype), *_order(tensor), tensor(8, 2, dtype=torch.float32)


OPERATION = Operation(
    name="expert_rows",
    folder="expert_rows",
    functions=(Function(expert_gather, _gather_arguments), Function(expert_combine, _combine_arguments)),
    operators=(
        Operator(
            "expert_gather",
            _fake_gather,
            _backward_by("expert_combine"),
            _setup,
            sharding=_columns_or_replicated,
            first_option=4,
        ),
        Operator(
            "expert_combine",
            _fake_combine,
            _backward_by("expert_gather"),
            _setup,
            sharding=_columns_or_replicated,
            first_option=4,
        ),
        Operator("expert_dot", _fake_dot, _dot_backward, _setup, sharding=_replicated, first_option=4),
    ),
    checks=_checks,
    order=22,
)
