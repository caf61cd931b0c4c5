# SPDX-License-Identifier: MIT
"""Shapes, derivatives and shardings of torch.ops.hipkittens.layer_norm, rms_norm and norm_backward."""

from __future__ import annotations

import math
from functools import partial

import torch

from .. import _backend
from .._call import call
from ..activation import GATES
from ._record import Operator, no_double_backward
from ._sharding import given, is_tensor, replicated


def layer_norm_fake(x, residual, weight, bias, eps, dropout_p, seed, need_statistics=True):
    sums = x.new_empty(x.shape if residual is not None or seed is not None else (0,))
    rows = x.shape[:-1] if need_statistics else (0,)
    return (
        x.new_empty(x.shape),
        sums,
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty(rows, dtype=torch.float32),
    )


def rms_norm_fake(x, residual, weight, eps, need_statistics=True):
    return (
        x.new_empty(x.shape),
        x.new_empty(x.shape if residual is not None else (0,)),
        x.new_empty(x.shape[:-1] if need_statistics else (0,), dtype=torch.float32),
    )


def norm_fake(
    x,
    residual,
    weight,
    bias,
    x_bias,
    gate,
    seed,
    centred,
    eps,
    dropout_p,
    gemma,
    round_before_weight,
    round_residual,
    y_columns,
    need_statistics=True,
):
    has_sum = residual is not None or seed is not None or x_bias is not None
    rows = x.shape[:-1] if need_statistics else (0,)
    return (
        x.new_empty((*x.shape[:-1], y_columns)),
        x.new_empty(x.shape if has_sum else (0,)),
        x.new_empty(rows if centred else (0,), dtype=torch.float32),
        x.new_empty(rows, dtype=torch.float32),
    )


def norm_backward_fake(dy, dsum, z, weight, mean, rstd, dropout_p, seed, need_weight, need_bias):
    dtype = torch.float32 if weight is None else weight.dtype
    columns = z.shape[-1:]
    return (
        z.new_empty(z.shape),
        z.new_empty(z.shape if seed is not None else (0,)),
        z.new_empty(columns if need_weight else (0,), dtype=dtype),
        z.new_empty(columns if need_bias else (0,), dtype=dtype),
    )


def layer_norm_setup(ctx, inputs, output) -> None:
    x, residual, weight, _bias, eps, dropout_p, seed, need_statistics = inputs
    _, sums, mean, rstd = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(mean, rstd)
    ctx.dropout_p, ctx.eps, ctx.has_statistics = dropout_p, eps, need_statistics
    ctx.save_for_backward(x if residual is None and seed is None else sums, weight, mean, rstd, seed)


def rms_norm_setup(ctx, inputs, output) -> None:
    x, residual, weight, eps, need_statistics = inputs
    _, sums, rstd = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(rstd)
    ctx.eps, ctx.has_statistics = eps, need_statistics
    ctx.save_for_backward(x if residual is None else sums, weight, rstd)


def norm_setup(ctx, inputs, output) -> None:
    x, residual, weight, bias, x_bias, gate, seed, *options, need_statistics = inputs
    ctx.centred, ctx.eps, ctx.dropout_p, ctx.gemma, ctx.round_before_weight, round_residual, _ = options
    _, sums, mean, rstd = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(mean, rstd)
    has_sum = residual is not None or seed is not None or x_bias is not None
    z = sums if has_sum else x
    # Statistics of the unrounded sum are not those of z.
    ctx.has_statistics = need_statistics and (round_residual or not has_sum)
    ctx.save_for_backward(z, weight, bias, gate, seed, x_bias, mean, rstd)


def _gradients(dy, dsum, z, weight, mean, rstd, dropout_p, seed, need_weight, need_bias):
    if dsum is not None and dsum.shape != z.shape:  # for the empty result that stands for x itself
        dsum = None
    if dy is None:
        dy = torch.zeros_like(z)
    return call("norm_backward", dy, dsum, z, weight, mean, rstd, dropout_p, seed, need_weight, need_bias)


@_backend.interruptible
def layer_norm_backward(ctx, dy, dsum, _dmean, _drstd):
    z, weight, mean, rstd, seed = ctx.saved_tensors
    if not ctx.has_statistics:
        _, _, mean, rstd = call("layer_norm", z, None, None, None, ctx.eps, 0.0, None)
    needs = ctx.needs_input_grad
    dx, dresidual, dweight, dbias = _gradients(
        dy, dsum, z, weight, mean, rstd, ctx.dropout_p, seed, needs[2], needs[3]
    )
    if seed is None:
        dresidual = dx
    return (
        dx if needs[0] else None,
        dresidual if needs[1] else None,
        dweight if needs[2] else None,
        dbias if needs[3] else None,
        None,
        None,
        None,
        None,
    )


@_backend.interruptible
def rms_norm_backward(ctx, dy, dsum, _drstd):
    z, weight, rstd = ctx.saved_tensors
    if not ctx.has_statistics:
        _, _, rstd = call("rms_norm", z, None, None, ctx.eps)
    needs = ctx.needs_input_grad
    dx, _, dweight, _ = _gradients(dy, dsum, z, weight, None, rstd, 0.0, None, needs[2], False)
    return dx if needs[0] else None, dx if needs[1] else None, dweight if needs[2] else None, None, None


@_backend.interruptible
def norm_gradients(ctx, dy, dsum, _dmean, _drstd):
    """By the kernels of the parts: that of a gated activation for the gate, and that of a norm whose weight is 1 + weight."""
    z, weight, bias, gate, seed, x_bias, mean, rstd = ctx.saved_tensors
    columns, needs, norm = z.shape[-1], ctx.needs_input_grad, partial(call, "norm")
    flags = (ctx.gemma, ctx.round_before_weight)
    if not ctx.has_statistics:
        _, _, mean, rstd = norm(
            z, None, None, None, None, None, None, ctx.centred, ctx.eps, 0.0, False, False, True, columns
        )
    if dy is not None:
        dy = dy[..., :columns]
    dgate = None
    if gate is not None:
        if dy is None:
            dy = torch.zeros_like(z)
        ungated = norm(
            z, None, weight, bias, None, None, None, ctx.centred, ctx.eps, 0.0, *flags, True, columns, False
        )[0]
        dgate, dy = call(
            "gated_activation_backward", dy, gate, ungated, None, GATES.index("silu"), 1.0, math.inf
        )
    factor = weight.float() + 1.0 if ctx.gemma else weight
    dx, dresidual, dweight, dbias = _gradients(
        dy,
        dsum,
        z,
        factor,
        mean if ctx.centred else None,
        rstd,
        ctx.dropout_p,
        seed,
        needs[2],
        needs[3],
    )
    dx_bias = None
    if needs[4]:
        dx_bias = dx.reshape(-1, columns).sum(0, dtype=torch.float32).to(x_bias.dtype)
    return (
        dx if needs[0] else None,
        (dx if seed is None else dresidual) if needs[1] else None,
        dweight.to(weight.dtype) if needs[2] else None,
        dbias.to(bias.dtype) if needs[3] else None,
        dx_bias,
        dgate if needs[5] else None,
        *[None] * 9,
    )


def norm_sharding(x, residual, weight, bias, x_bias, gate, seed, centred, *options):
    from torch.distributed.tensor import Replicate, Shard

    need_statistics = len(options) < 7 or options[6]
    arguments = (x, residual, weight, bias, x_bias, gate, seed, centred, *options)
    found = [replicated(arguments, 4)]
    if seed is not None:  # which counts from the first row
        return found
    whole = Replicate()
    for axis in range(len(x.shape) - 1):
        rows = Shard(axis)
        sums = whole if residual is None and x_bias is None else rows
        statistics = rows if need_statistics else whole
        inputs = [rows, given(residual, rows), *(given(each, whole) for each in (weight, bias, x_bias))]
        outputs = [rows, sums, statistics if centred else whole, statistics]
        found.append((outputs, [*inputs, given(gate, rows), None, None, *[None] * len(options)]))
    return found


def sharding(results: int):
    def strategies(x, residual, *rest):
        from torch.distributed.tensor import Replicate, Shard

        found = [replicated((x, residual, *rest), results)]
        if any(is_tensor(value) for value in rest[4:]):  # the seed of dropout counts from the first row
            return found
        need_statistics = rest[-1] is not False  # omitted if it is True, its default
        for axis in range(len(x.shape) - 1):
            rows = Shard(axis)
            sums = Replicate() if residual is None else rows  # empty if there is nothing to add
            parameters = [Replicate() if is_tensor(value) else None for value in rest]
            outputs = [rows, sums, *[rows if need_statistics else Replicate()] * (results - 2)]
            found.append((outputs, [rows, given(residual, rows), *parameters]))
        return found

    return strategies


def backward_sharding(dy, dsum, z, weight, mean, rstd, dropout_p, seed, need_weight, need_bias):
    from torch.distributed.tensor import Partial, Replicate, Shard

    arguments = (dy, dsum, z, weight, mean, rstd, dropout_p, seed, need_weight, need_bias)
    found = [replicated(arguments, 4)]
    if seed is not None:
        return found
    for axis in range(len(z.shape) - 1):
        rows = Shard(axis)
        outputs = [
            rows,
            Replicate(),
            *(Partial() if need else Replicate() for need in (need_weight, need_bias)),
        ]
        inputs = [rows, given(dsum, rows), rows, given(weight, Replicate()), given(mean, rows), rows]
        found.append((outputs, [*inputs, None, None, None, None]))
    return found


BACKWARD = Operator(
    "norm_backward",
    norm_backward_fake,
    no_double_backward("layer_norm and rms_norm"),
    sharding=backward_sharding,
    first_option=6,
)
FUSED = Operator("norm", norm_fake, norm_gradients, norm_setup, sharding=norm_sharding, first_option=7)
