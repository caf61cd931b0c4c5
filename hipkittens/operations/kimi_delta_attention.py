# SPDX-License-Identifier: MIT
"""The record of Kimi delta attention; the functions are in hipkittens/kimi_delta.py."""

from __future__ import annotations

import torch

from ..kimi_delta import kimi_delta_attention, kimi_delta_step
from ._record import Checks, Function, Operation, Operator, no_derivative
from ._sharding import given, replicated


def _fake(q, k, v, g, beta, a_log, dt_bias, initial, starts, *_options):
    sequences = v.shape[0] if starts is None else starts.shape[0] - 1
    states = sequences, v.shape[2], k.shape[3], v.shape[3]
    return v.new_empty(v.shape), v.new_empty(states, dtype=torch.float32)


def _step_fake(q, k, v, *_rest):
    return v.new_empty(v.shape)


def _sharding(*arguments):
    """By sequences of one length, or by heads."""
    from torch.distributed.tensor import Replicate, Shard

    *_, a_log, dt_bias, initial, starts = arguments[:9]
    found = [replicated(arguments, 2)]
    for axis, of_state, of_gate in ((0, Shard(0), Replicate()), (2, Shard(1), Shard(0))):
        if axis == 0 and starts is not None:
            continue
        rows = Shard(axis)
        gate = [given(parameter, of_gate) for parameter in (a_log, dt_bias)]
        own = [rows] * 5 + [*gate, given(initial, of_state), given(starts, Replicate())]
        found.append(([rows, of_state], own + [None] * 4))
    return found


def _checks() -> Checks:
    from ._kimi_delta_checks import CHECKS

    return CHECKS


def _inputs(tensor, dtype, tokens):
    return (
        tensor(2, tokens, 2, 64, dtype=dtype),
        tensor(2, tokens, 2, 64, dtype=dtype),
        tensor(2, tokens, 4, 64, dtype=dtype),
        tensor(2, tokens, 4, 64, dtype=torch.float32),
        tensor(2, tokens, 4, dtype=torch.float32),
    )


def _rule_arguments(tensor, dtype):
    return _inputs(tensor, dtype, 5)


def _step_arguments(tensor, dtype):
    return *_inputs(tensor, dtype, 1), tensor(3, 4, 64, 64, dtype=torch.float32)


OPERATION = Operation(
    name="kimi_delta_attention",
    folder="delta_rule",
    functions=(Function(kimi_delta_attention, _rule_arguments), Function(kimi_delta_step, _step_arguments)),
    operators=(
        Operator(
            "kimi_delta_attention",
            _fake,
            no_derivative("kimi_delta_attention", "PyTorch's own operations"),
            sharding=_sharding,
            first_option=9,
        ),
        Operator("kimi_delta_step", _step_fake),
    ),
    checks=_checks,
    order=25,
    kinds=("channel_step", "channel_prepare", "channel_scan"),
)
