# SPDX-License-Identifier: MIT
"""The record of the router of a mixture of experts; the function is in hipkittens/routing.py."""

from __future__ import annotations

import torch

from .. import _backend
from ..routing import SCORES, router, weights_in_torch
from ._record import Checks, Function, Operation, Operator
from ._sharding import rowwise


def _fake(logits, bias, k, score, groups, topk_groups, renormalize, scale, shared):
    shape = (*logits.shape[:-1], k + shared)
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int32)


def _setup(ctx, inputs, output) -> None:
    logits, _, ctx.k, ctx.score, _, _, ctx.renormalize, ctx.scale, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(logits, output[1])


@_backend.interruptible
def _backward(ctx, grad, _):
    """The derivative of the weights with the selection held fixed, by PyTorch's own operations, which are differentiable again."""
    logits, ids = ctx.saved_tensors
    ids, grad, x = ids[..., : ctx.k].long(), grad[..., : ctx.k] * ctx.scale, logits.float()
    score = SCORES[ctx.score]
    if score == "softmax":
        # The renormalized weights of the chosen experts are a softmax over these.
        p = weights_in_torch(x, ids, ctx.score, ctx.renormalize, 1.0)
        dot = (grad * p).sum(-1, keepdim=True)
        if ctx.renormalize:
            dx = torch.zeros_like(x).scatter(-1, ids, p * (grad - dot))
        else:
            dx = (-dot * x.softmax(-1)).scatter_add(-1, ids, p * grad)
    else:
        chosen = x.gather(-1, ids)
        s = weights_in_torch(x, ids, ctx.score, False, 1.0)
        if ctx.renormalize:
            w = weights_in_torch(x, ids, ctx.score, True, 1.0)
            grad = (grad - (grad * w).sum(-1, keepdim=True)) / s.sum(-1, keepdim=True)
        slope = s * (-chosen).sigmoid() if score == "sigmoid" else chosen.sigmoid() / (2 * s)
        dx = torch.zeros_like(x).scatter(-1, ids, grad * slope)
    return (dx.to(logits.dtype), *[None] * 8)


def _checks() -> Checks:
    from ._router_checks import CHECKS

    return CHECKS


OPERATION = Operation(
    name="router",
    folder="router",
    kinds=("route",),
    functions=(Function(router, lambda tensor, dtype: (tensor(8, 64, dtype=dtype), 4)),),
    operators=(Operator("router", _fake, _backward, _setup, sharding=rowwise(1, 2), first_option=2),),
    checks=_checks,
    order=21,
)
