# SPDX-License-Identifier: MIT
"""The record of rotating and concatenating heads of latent attention; the function is in hipkittens/latent_rotary.py."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..latent_rotary import mla_rotary
from ._record import Checks, Function, Operation, Operator
from ._sharding import given, replicated

_PARTS, _TABLES = 4, 6  # tensors of a rotation, followed by an offset and four flags


def _fake(q_nope, q_pe, k_nope, k_pe, *_rotation):
    return tuple(
        nope.new_empty((*nope.shape[:3], nope.shape[3] + pe.shape[3]))
        for nope, pe in ((q_nope, q_pe), (k_nope, k_pe))
    )


def _cache_fake(*arguments):
    q, k = _fake(*arguments[:_PARTS])
    return q.to(torch.uint8) if arguments[-1] else q, k


def _setup(ctx, inputs, output) -> None:
    *_, offset, interleaved, nope_first, full_tables, inverse = inputs
    ctx.save_for_backward(*inputs[_PARTS : _PARTS + _TABLES])
    ctx.nope, ctx.nope_first = inputs[0].shape[-1], nope_first
    # The gradient is split, and rotated back.
    ctx.flags = (offset, interleaved, False, full_tables, not inverse, False)


@_backend.interruptible
def _backward(ctx, grad_q, grad_k):
    if any(ctx.needs_input_grad[_PARTS : _PARTS + _TABLES]):
        raise NotImplementedError("hipkittens: mla_rotary gives cos and sin no gradient; detach them")
    sizes = [ctx.nope, grad_q.shape[-1] - ctx.nope]
    parts = [grad.split(sizes if ctx.nope_first else sizes[::-1], -1) for grad in (grad_q, grad_k)]
    (q_nope, q_pe), (k_nope, k_pe) = parts if ctx.nope_first else [pair[::-1] for pair in parts]
    q_pe, k_pe = call("rotary_qk", q_pe, k_pe, *ctx.saved_tensors, *ctx.flags)
    return q_nope, q_pe, k_nope, k_pe, *[None] * (_TABLES + 5)


def _sharding(*arguments):
    """By batch, and queries by heads where keys have one."""
    from torch.distributed.tensor import Replicate, Shard

    tables = arguments[_PARTS : _PARTS + _TABLES]
    found = [replicated(arguments, 2)]
    for q, k, numbers in ((Shard(0), Shard(0), Shard(0)), (Shard(2), Replicate(), Replicate())):
        placements = [Replicate(), Replicate(), numbers, numbers, Replicate(), Replicate()]
        of_tables = [given(table, each) for table, each in zip(tables, placements, strict=True)]
        found.append(([q, k], [q, q, k, k, *of_tables, *[None] * 5]))
    return found


def _checks() -> Checks:
    from ._mla_rotary_checks import CHECKS

    return CHECKS


def _arguments(tensor, dtype):
    table = tensor(16, 32, dtype=torch.float32)
    q_nope, q_pe = tensor(16, 4, 128, dtype=dtype), tensor(16, 4, 64, dtype=dtype)
    return q_nope, q_pe, tensor(16, 128, dtype=dtype), tensor(16, 64, dtype=dtype), table, table


OPERATION = Operation(
    name="mla_rotary",
    folder="rotary",
    functions=(Function(mla_rotary, _arguments),),
    operators=(
        Operator("mla_rotary", _fake, _backward, _setup, sharding=_sharding, first_option=10),
        Operator("mla_rotary_cache", _cache_fake),
    ),
    checks=_checks,
    order=4,
    uses=("rotary",),
)
