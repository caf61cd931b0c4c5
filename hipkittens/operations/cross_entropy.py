# SPDX-License-Identifier: MIT
"""The record of cross_entropy."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..loss import cross_entropy
from ._record import Checks, Function, Operation, Operator, no_double_backward
from ._sharding import given, replicated


def _fake(logits, target, ignore_index, label_smoothing, z_loss, softcap, need_entropy):
    rows = logits.shape[:-1]
    return tuple(
        logits.new_empty(shape, dtype=torch.float32)
        for shape in (rows, rows, rows, rows if need_entropy else (0,))
    )


def _setup(ctx, inputs, output) -> None:
    logits, target, *options, need_entropy = inputs
    _, maximum, sums, entropy = output
    ctx.options, ctx.has_entropy = options, need_entropy
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(maximum, sums)
    ctx.save_for_backward(logits, target, maximum, sums, entropy)


@_backend.interruptible
def _backward(ctx, dloss, _dmaximum, _dsum, dentropy):
    logits, target, maximum, sums, entropy = ctx.saved_tensors
    if not ctx.has_entropy:
        dentropy = None
    if dloss is None:
        dloss = torch.zeros((), dtype=torch.float32, device=logits.device)
    dlogits = call(
        "cross_entropy_backward",
        _rows(dloss),
        None if dentropy is None else _rows(dentropy),
        logits,
        target,
        maximum,
        sums,
        None if dentropy is None else entropy,
        *ctx.options,
    )
    return dlogits, *[None] * 6


def _rows(gradient: torch.Tensor) -> torch.Tensor:
    """One value for each row, or one for all of them, as the gradient of a sum expands it."""
    return gradient if not any(gradient.stride()) else gradient.contiguous()


def _backward_fake(dloss, dentropy, logits, target, maximum, sums, entropy, *options):
    return logits.new_empty(logits.shape)


def _in_place_fake(logits, target, dloss, *options):
    return logits.new_empty(logits.shape[:-1], dtype=torch.float32)


def _backward_in_place_fake(logits, target, dloss, maximum, sums, classes, *options):
    return None


def classes_of(drawn):
    """Small numbers of either sign as classes."""
    return drawn.abs() if isinstance(drawn, torch.Tensor) else drawn


def _sharding(logits, target, *options):
    from torch.distributed.tensor import Replicate, Shard

    found = [replicated((logits, target, *options), 4)]
    for axis in range(len(logits.shape) - 1):
        rows = Shard(axis)
        outputs = [rows, rows, rows, rows if options[-1] else Replicate()]
        found.append((outputs, [rows, rows, *[None] * len(options)]))
    return found


def _backward_sharding(dloss, dentropy, logits, target, maximum, sums, entropy, *options):
    from torch.distributed.tensor import Shard

    tensors = (dloss, dentropy, logits, target, maximum, sums, entropy)
    found = [replicated((*tensors, *options), 1)]
    if len(dloss.shape) != len(target.shape):  # one for all rows
        return found
    for axis in range(len(logits.shape) - 1):
        found.append(
            ([Shard(axis)], [*(given(value, Shard(axis)) for value in tensors), *[None] * len(options)])
        )
    return found


def _checks() -> Checks:
    from ._cross_entropy_checks import CROSS_ENTROPY

    return CROSS_ENTROPY


OPERATION = Operation(
    name="cross_entropy",
    folder="loss",
    functions=(
        Function(
            cross_entropy,
            lambda tensor, dtype: (
                tensor(64, 128, dtype=dtype),
                classes_of(tensor(64, dtype=torch.int64)),
            ),
        ),
    ),
    operators=(
        Operator("cross_entropy", _fake, _backward, _setup, sharding=_sharding, first_option=2),
        Operator(
            "cross_entropy_backward",
            _backward_fake,
            no_double_backward("cross_entropy"),
            sharding=_backward_sharding,
            first_option=7,
        ),
        Operator("cross_entropy_in_place", _in_place_fake, first_option=3),
        Operator("cross_entropy_backward_in_place", _backward_in_place_fake, first_option=5),
    ),
    checks=_checks,
)
