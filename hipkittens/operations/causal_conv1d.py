# SPDX-License-Identifier: MIT
"""The record of causal convolutions; the functions are in hipkittens/convolution.py."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..convolution import causal_conv1d, causal_conv1d_update
from ._record import Checks, Function, Operation, Operator, no_double_backward
from ._sharding import given, replicated


def _fake(x, *_rest):
    return x.new_empty(x.shape)


def _split_fake(x, weight, *rest):
    channels_last, _, first, second = rest[-4:]
    axis = 2 if channels_last else 1
    sizes = (first, second, weight.shape[0] - first - second)
    return tuple(x.new_empty([*x.shape[:axis], size, *x.shape[axis + 1 :]]) for size in sizes)


def _backward_fake(dy, x, weight, bias, *_rest):
    return (
        x.new_empty(x.shape),
        weight.new_empty(weight.shape),
        weight.new_empty(0 if bias is None else bias.shape),
    )


def _setup(ctx, inputs, output) -> None:
    *tensors, channels_last, silu = inputs
    ctx.save_for_backward(*tensors)
    ctx.options = channels_last, silu


@_backend.interruptible
def _backward(ctx, dy):
    dx, dweight, dbias = call("causal_conv1d_backward", dy, *ctx.saved_tensors, *ctx.options)
    return dx, dweight, None if ctx.saved_tensors[2] is None else dbias, None, None, None


def _split_setup(ctx, inputs, output) -> None:
    _setup(ctx, inputs[:-2], output)


@_backend.interruptible
def _split_backward(ctx, *parts):
    return *_backward(ctx, torch.cat(parts, 2 if ctx.options[0] else 1)), None, None


def _sharding(x, weight, bias, starts, channels_last, silu):
    """By channels."""
    from torch.distributed.tensor import Replicate, Shard

    along, rows = Shard(2 if channels_last else 1), Shard(0)
    inputs = [along, rows, given(bias, rows), given(starts, Replicate()), None, None]
    return [replicated((x, weight, bias, starts, None, None), 1), ([along], inputs)]


def _backward_sharding(dy, x, weight, bias, starts, channels_last, silu):
    from torch.distributed.tensor import Replicate, Shard

    along, rows = Shard(2 if channels_last else 1), Shard(0)
    inputs = [along, along, rows, given(bias, rows), given(starts, Replicate()), None, None]
    # Without bias its gradient is empty.
    results = [along, rows, Replicate() if bias is None else rows]
    return [replicated((dy, x, weight, bias, starts, None, None), 3), (results, inputs)]


def _checks() -> Checks:
    from ._causal_conv1d_checks import CHECKS

    return CHECKS


def _arguments(tensor, dtype):
    return tensor(2, 16, 32, dtype=dtype), tensor(16, 4, dtype=dtype), tensor(16, dtype=dtype)


def _update_arguments(tensor, dtype):
    return (
        tensor(2, 16, dtype=dtype),
        tensor(4, 16, 3, dtype=dtype),
        tensor(16, 4, dtype=dtype),
        tensor(16, dtype=dtype),
    )


OPERATION = Operation(
    name="causal_conv1d",
    folder="conv",
    functions=(Function(causal_conv1d, _arguments), Function(causal_conv1d_update, _update_arguments)),
    operators=(
        Operator("causal_conv1d", _fake, _backward, _setup, sharding=_sharding, first_option=4),
        Operator(
            "causal_conv1d_backward",
            _backward_fake,
            no_double_backward("causal_conv1d", "torch.nn.functional.conv1d"),
            sharding=_backward_sharding,
            first_option=5,
        ),
        Operator("causal_conv1d_states", _fake),
        Operator("causal_conv1d_split", _split_fake, _split_backward, _split_setup),
        Operator("causal_conv1d_states_split", _split_fake),
    ),
    checks=_checks,
    order=24,
)
