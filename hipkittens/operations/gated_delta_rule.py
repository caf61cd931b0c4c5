# SPDX-License-Identifier: MIT
"""The record of gated delta rules; the functions are in hipkittens/delta_rule.py."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..delta_rule import gated_delta_rule, gated_delta_step
from ._record import Checks, Function, Operation, Operator, no_double_backward
from ._sharding import given, replicated


def _sequences(v, starts):
    return v.shape[0] if starts is None else starts.shape[0] - 1


def _fake(q, k, v, g, beta, initial, starts, scale, normalize):
    states = _sequences(v, starts), v.shape[2], k.shape[3], v.shape[3]
    return v.new_empty(v.shape), v.new_empty(states, dtype=torch.float32)


def _backward_fake(dout, dfinal, q, k, v, g, beta, initial, starts, scale, normalize):
    batch, tokens, heads, value = v.shape
    of_keys = (batch, tokens, heads, k.shape[3])
    dtype = q.dtype if heads == q.shape[2] else torch.float32
    states = 0 if initial is None else _sequences(v, starts)
    return (
        *(q.new_empty(of_keys, dtype=dtype) for _ in range(2)),
        v.new_empty(v.shape),
        *(g.new_empty((batch, tokens, heads), dtype=torch.float32) for _ in range(2)),
        g.new_empty((states, heads, k.shape[3], value), dtype=torch.float32),
    )


def _setup(ctx, inputs, output) -> None:
    *tensors, scale, normalize = inputs
    ctx.save_for_backward(*tensors)
    ctx.options = scale, normalize


@_backend.interruptible
def _backward(ctx, dout, dfinal):
    q, k, v, g, beta, initial, starts = ctx.saved_tensors
    dfinal = None if dfinal is None else dfinal.contiguous()
    dq, dk, dv, dg, dbeta, dinitial = call(
        "gated_delta_rule_backward", dout, dfinal, q, k, v, g, beta, initial, starts, *ctx.options
    )
    if (heads := q.shape[2]) != v.shape[2]:
        # Summed over the value heads that share a query and a key.
        dq, dk = (each.unflatten(2, (heads, -1)).sum(3).to(q.dtype) for each in (dq, dk))
    return dq, dk, dv, dg, dbeta, None if initial is None else dinitial, None, None, None


def _step_fake(q, k, v, *_rest):
    return v.new_empty(v.shape)


def _by_sequence_or_head(*arguments, gradients: int):
    """For arguments that are `gradients` of outputs, followed by those of the operator."""
    from torch.distributed.tensor import Replicate, Shard

    tensors = arguments[gradients:]
    initial, starts = tensors[5], tensors[6]
    results = 6 if gradients else 2
    found = [replicated(arguments, results)]
    # Sequences of one length, or heads; of a state these are dimensions 0 and 1.
    for axis, of_state in ((0, 0), (2, 1)):
        if axis == 0 and starts is not None:
            continue
        rows, states = Shard(axis), Shard(of_state)
        own = [rows] * 5 + [given(initial, states), given(starts, Replicate()), None, None]
        before = [rows, given(arguments[1], states)] if gradients else []
        # Without initial its gradient is empty.
        of_initial = Replicate() if initial is None else states
        outputs = [*[rows] * 5, of_initial] if gradients else [rows, states]
        found.append((outputs, [*before, *own]))
    return found


def _sharding(*arguments):
    return _by_sequence_or_head(*arguments, gradients=0)


def _backward_sharding(*arguments):
    return _by_sequence_or_head(*arguments, gradients=2)


def _checks() -> Checks:
    from ._gated_delta_rule_checks import CHECKS

    return CHECKS


def _inputs(tensor, dtype, tokens):
    return (
        tensor(2, tokens, 2, 64, dtype=dtype),
        tensor(2, tokens, 2, 64, dtype=dtype),
        tensor(2, tokens, 4, 64, dtype=dtype),
        tensor(2, tokens, 4, dtype=torch.float32),
        tensor(2, tokens, 4, dtype=torch.float32),
    )


def _rule_arguments(tensor, dtype):
    return _inputs(tensor, dtype, 20)


def _step_arguments(tensor, dtype):
    return *_inputs(tensor, dtype, 1), tensor(3, 4, 64, 64, dtype=torch.float32)


OPERATION = Operation(
    name="gated_delta_rule",
    folder="delta_rule",
    functions=(Function(gated_delta_rule, _rule_arguments), Function(gated_delta_step, _step_arguments)),
    operators=(
        Operator("gated_delta_rule", _fake, _backward, _setup, sharding=_sharding, first_option=7),
        Operator(
            "gated_delta_rule_backward",
            _backward_fake,
            no_double_backward("gated_delta_rule"),
            sharding=_backward_sharding,
            first_option=9,
        ),
        Operator("gated_delta_step", _step_fake),
    ),
    checks=_checks,
    order=25,
    kinds=("step", "prepare", "scan", "reverse", "gradient"),
)
