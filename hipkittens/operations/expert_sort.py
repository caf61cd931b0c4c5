# SPDX-License-Identifier: MIT
"""The record of sorting tokens by experts; the function is in hipkittens/routing.py."""

from __future__ import annotations

import torch

from ..routing import capacity, expert_sort
from ._record import Checks, Function, Operation, Operator
from ._sharding import replicated


def _fake(ids, weights, expert_map, num_experts, block, layout):
    places = capacity(ids.numel(), num_experts, block)
    blocks = 0 if layout == 2 else places // block
    numbers = [ids.new_empty(size) for size in (places, blocks, blocks, num_experts + 1, 2)]
    in_order = ids.new_empty(0 if weights is None else places, dtype=torch.float32)
    return in_order, *numbers, ids.new_empty(ids.shape)


def _setup(ctx, inputs, output) -> None:
    _, *others = output
    ctx.mark_non_differentiable(*others)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(others[-1])


def _backward(ctx, grad, *_others):
    """The gradient of each pair from its place; PyTorch's own operations, which are differentiable again."""
    (places,) = ctx.saved_tensors
    dweights = None
    if grad is not None and ctx.needs_input_grad[1]:
        dweights = grad[places.clamp(min=0).long()].masked_fill(places < 0, 0)
    return None, dweights, None, None, None, None


def _sharding(*arguments):
    return [replicated(arguments, 7)]


def _checks() -> Checks:
    from ._expert_sort_checks import CHECKS

    return CHECKS


def _arguments(tensor, dtype):
    return tensor(8, 2, dtype=torch.int32), tensor(8, 2, dtype=dtype), 4, 16


OPERATION = Operation(
    name="expert_sort",
    folder="expert_sort",
    functions=(Function(expert_sort, _arguments),),
    operators=(Operator("expert_sort", _fake, _backward, _setup, sharding=_sharding, first_option=3),),
    checks=_checks,
    order=22,
)
