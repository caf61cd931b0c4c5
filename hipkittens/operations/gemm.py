# SPDX-License-Identifier: MIT
"""The record of matrix products; the functions are in hipkittens/gemm.py."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..gemm import addmm_, linear, matmul
from ._record import Checks, Function, Operation, Operator
from ._sharding import given, replicated


def _fake(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype, deterministic: bool
) -> torch.Tensor:
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"hipkittens::gemm: {tuple(a.shape)} @ {tuple(b.shape)}")
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=out_dtype)


def _setup(ctx, inputs, output) -> None:
    a, b, bias, _, deterministic = inputs
    ctx.save_for_backward(a, b)
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.deterministic = deterministic


@_backend.interruptible
def _backward(ctx, grad):
    # Built from the operator itself, so that it is differentiable again; transposed views are orientations of the
    # kernel and not copies.
    a, b = ctx.saved_tensors
    grad_a = grad_b = grad_bias = None
    rounded = grad.to(a.dtype)
    if ctx.needs_input_grad[0]:
        grad_a = call("gemm", rounded, b.mT, None, a.dtype, ctx.deterministic)
    if ctx.needs_input_grad[1]:
        grad_b = call("gemm", a.mT, rounded, None, b.dtype, ctx.deterministic)
    if ctx.needs_input_grad[2]:
        grad_bias = grad.sum(dim=tuple(range(grad.dim() - 1)), dtype=torch.float32).to(ctx.bias_dtype)
    return grad_a, grad_b, grad_bias, None, None


def _add_fake(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    torch._check(
        sums.shape == (*a.shape[:-1], b.shape[-1]) and a.shape[-1] == b.shape[-2],
        lambda: f"hipkittens::addmm_: {tuple(sums.shape)} += {tuple(a.shape)} @ {tuple(b.shape)}",
    )


def _flops(a_shape, b_shape, *_args, out_shape=None, **_kwargs) -> int:
    flops = 2 * b_shape[-1]
    for size in a_shape:
        flops *= size
    return flops


def _add_flops(_sums_shape, a_shape, b_shape, out_shape=None) -> int:
    return _flops(a_shape, b_shape)


def _sharding(a, b, bias, out_dtype, deterministic):
    from torch.distributed.tensor import Partial, Replicate, Shard

    arguments = (a, b, bias, out_dtype, deterministic)
    rows, columns = len(a.shape) - 2, len(b.shape) - 1

    def strategy(out, a_placement, b_placement, bias_placement):
        return [out], [a_placement, b_placement, given(bias, bias_placement), None, None]

    found = [
        replicated(arguments, 1),
        strategy(Shard(rows), Shard(rows), Replicate(), Replicate()),
        strategy(Shard(columns), Replicate(), Shard(columns), Shard(0)),
        strategy(Partial(), Shard(rows + 1), Shard(columns - 1), Partial()),
    ]
    found += [strategy(Shard(axis), Shard(axis), Shard(axis), Replicate()) for axis in range(rows)]
    return found


def _checks() -> Checks:
    from ._gemm_checks import CHECKS

    return CHECKS


def _square(tensor, dtype):
    return tensor(32, 32, dtype=dtype), tensor(32, 32, dtype=dtype)


def _summed(tensor, dtype):
    return tensor(32, 32, dtype=torch.float32), *_square(tensor, dtype)


OPERATION = Operation(
    name="gemm",
    folder="gemm",
    kinds=("gemm", "adding", "reduce"),
    functions=(Function(matmul, _square), Function(linear, _square), Function(addmm_, _summed)),
    operators=(
        Operator("gemm", _fake, _backward, _setup, _flops, sharding=_sharding, first_option=3),
        Operator("addmm_", _add_fake, flops=_add_flops, first_option=3),
    ),
    checks=_checks,
    order=0,
)
