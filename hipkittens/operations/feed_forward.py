# SPDX-License-Identifier: MIT
"""The record of linear layers with a fused activation or gate; the functions are in hipkittens/feed_forward.py and gemm.py."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..feed_forward import feed_forward, gated_linear
from ._kept_sums import gradient_of_gates, kept
from ._record import Checks, Function, Operation, Operator
from ._sharding import given, replicated


def _fake(x, weight, bias, activation, keep_sums, out_dtype):
    return _empty("linear_activated", x, weight, weight.shape[0], keep_sums, out_dtype)


def _fake_gated(x, weight, bias, activation, interleaved, alpha, limit, keep_sums, out_dtype):
    return _empty("linear_gated", x, weight, weight.shape[0] // 2, keep_sums, out_dtype)


def _empty(name, x, weight, columns, keep_sums, out_dtype):
    torch._check(
        x.shape[1] == weight.shape[1],
        lambda: f"hipkittens::{name}: x {tuple(x.shape)}, weight {tuple(weight.shape)}",
    )
    sums = x.new_empty((x.shape[0], weight.shape[0]) if keep_sums else (0,))
    return x.new_empty((x.shape[0], columns), dtype=out_dtype), sums


def _setup(ctx, inputs, output) -> None:
    x, weight, bias, *ctx.options = inputs
    ctx.save_for_backward(x, weight, bias, output[1])
    ctx.mark_non_differentiable(output[1])


@_backend.interruptible
def _backward(ctx, grad, _of_sums):
    sums = kept(ctx.saved_tensors[3])
    of_sums = call("activation_backward", grad.to(sums.dtype), sums, ctx.options[0])
    return *_of_product(ctx, of_sums), None, None, None


@_backend.interruptible
def _backward_gated(ctx, grad, _of_sums):
    of_sums = gradient_of_gates(grad, ctx.saved_tensors[3], *ctx.options[:4])
    return *_of_product(ctx, of_sums), None, None, None, None, None, None


def _of_product(ctx, grad):
    """Gradients of x, weight and bias."""
    x, weight, bias, _ = ctx.saved_tensors
    of_x = of_weight = of_bias = None
    if ctx.needs_input_grad[0]:
        of_x = call("gemm", grad, weight, None, x.dtype, False)
    if ctx.needs_input_grad[1]:
        of_weight = call("gemm", grad.t(), x, None, weight.dtype, False)
    if bias is not None and ctx.needs_input_grad[2]:
        of_bias = grad.sum(0, dtype=torch.float32).to(bias.dtype)
    return of_x, of_weight, of_bias


def _flops(x_shape, weight_shape, *_args, out_shape=None, **_kwargs) -> int:
    return 2 * x_shape[0] * weight_shape[0] * weight_shape[1]


def _sharding(x, weight, bias, *options):
    from torch.distributed.tensor import Replicate, Shard

    rows = [Shard(0), Replicate(), given(bias, Replicate()), *[None] * len(options)]
    return [
        replicated((x, weight, bias, *options), 2),
        ([Shard(0), _of_kept(options, Shard(0))], rows),
    ]


def _sharding_by_columns(x, weight, bias, *options):
    from torch.distributed.tensor import Replicate, Shard

    columns = [Replicate(), Shard(0), given(bias, Shard(0)), *[None] * len(options)]
    found = ([Shard(1), _of_kept(options, Shard(1))], columns)
    return [*_sharding(x, weight, bias, *options), found]


def _of_kept(options, placement):
    """From the stored accumulators, which are empty if they are not stored."""
    from torch.distributed.tensor import Replicate

    keep_sums = options[-2]
    return placement if keep_sums else Replicate()


def _checks() -> Checks:
    from ._feed_forward_checks import CHECKS

    return CHECKS


def _block(tensor, dtype):
    return tensor(32, 32, dtype=dtype), tensor(96, 32, dtype=dtype), tensor(32, 48, dtype=dtype)


OPERATION = Operation(
    name="feed_forward",
    folder="gemm",
    kinds=("activated", "gated"),
    functions=(
        Function(feed_forward, _block),
        Function(gated_linear, lambda tensor, dtype: _block(tensor, dtype)[:2]),
    ),
    operators=(
        Operator(
            "linear_activated",
            _fake,
            _backward,
            _setup,
            _flops,
            sharding=_sharding_by_columns,
            first_option=3,
        ),
        Operator(
            "linear_gated", _fake_gated, _backward_gated, _setup, _flops, sharding=_sharding, first_option=3
        ),
    ),
    checks=_checks,
    order=1,
    uses=("gemm", "gated_activation", "activation"),
)
