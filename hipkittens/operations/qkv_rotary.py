# SPDX-License-Identifier: MIT
"""The record of splitting, normalizing and rotating a packed qkv; the function is in hipkittens/qkv.py."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..qkv import qkv_rotary
from ._record import Checks, Function, Operation, Operator, no_double_backward
from ._sharding import given, replicated

_TABLES = 6  # tensors of a rotation, followed by an offset and four flags, the last of which is `inverse`


def _fake(qkv, *arguments):
    num_heads, num_kv_heads, _eps = arguments[-3:]
    features = qkv.shape[-1] // (num_heads + 2 * num_kv_heads)
    return tuple(
        qkv.new_empty((*qkv.shape[:2], heads, features)) for heads in (num_heads, num_kv_heads, num_kv_heads)
    )


def _cache_fake(q, k, v, *_arguments):
    return tuple(each.new_empty(each.shape) for each in (q, k, v))


# A copy of csrc/kernels/rotary/plan.cpp's qkv_backward_workgroups and config.h's waves, which tests compare.
WAVES, LARGEST_WORKGROUPS = 4, 304


def _backward_fake(dq, dk, dv, qkv, q_weight, k_weight, *_options):
    batch, tokens, heads, features = dq.shape
    dqkv = dq.new_empty((batch, tokens, (heads + 2 * dk.shape[2]) * features))
    items = batch * tokens * max(heads, dk.shape[2])
    workgroups = min(max(-(-items // WAVES), 1), LARGEST_WORKGROUPS)
    rows = workgroups * WAVES if dqkv.numel() else 0
    sums = (
        dq.new_empty((0 if weight is None else rows, features), dtype=torch.float32)
        for weight in (q_weight, k_weight)
    )
    return dqkv, *sums


def _setup(ctx, inputs, output) -> None:
    qkv, q_weight, k_weight, *tables = inputs[: 3 + _TABLES]
    normalised = q_weight is not None or k_weight is not None
    ctx.save_for_backward(qkv if normalised else None, q_weight, k_weight, *tables)
    *flags, inverse, _num_heads, _num_kv_heads, ctx.eps = inputs[3 + _TABLES :]
    ctx.flags = (*flags, not inverse)


@_backend.interruptible
def _backward(ctx, dq, dk, dv):
    if any(ctx.needs_input_grad[3 : 3 + _TABLES]):
        raise NotImplementedError("hipkittens: qkv_rotary gives cos and sin no gradient; detach them")
    _, q_weight, k_weight, *_ = ctx.saved_tensors
    dqkv, *sums = call("qkv_rotary_backward", dq, dk, dv, *ctx.saved_tensors, *ctx.flags, ctx.eps)
    weights = (
        None if weight is None else part.sum(0).to(weight.dtype)
        for weight, part in zip((q_weight, k_weight), sums, strict=True)
    )
    return dqkv, *weights, *[None] * 14


def _sharding(*arguments):
    """By batch."""
    from torch.distributed.tensor import Replicate, Shard

    tables = zip(arguments[3 : 3 + _TABLES], (None, None, Shard(0), Shard(0), None, None), strict=True)
    of_tables = [given(table, placement or Replicate()) for table, placement in tables]
    weights = [given(weight, Replicate()) for weight in arguments[1:3]]
    return [
        replicated(arguments, 3),
        ([Shard(0)] * 3, [Shard(0), *weights, *of_tables, *[None] * 8]),
    ]


def _checks() -> Checks:
    from ._qkv_rotary_checks import CHECKS

    return CHECKS


def _arguments(tensor, dtype):
    table = tensor(16, 32, dtype=torch.float32)
    return tensor(2, 16, 8 * 64, dtype=dtype), table, table, 4, 2


OPERATION = Operation(
    name="qkv_rotary",
    folder="rotary",
    functions=(Function(qkv_rotary, _arguments),),
    operators=(
        Operator("qkv_rotary", _fake, _backward, _setup, sharding=_sharding, first_option=9),
        Operator("qkv_rotary_cache", _cache_fake),
        Operator("qkv_rotary_backward", _backward_fake, no_double_backward("qkv_rotary")),
    ),
    checks=_checks,
    order=4,
)
