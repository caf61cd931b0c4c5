# SPDX-License-Identifier: MIT
"""The record of HSTU attention; the function is in hipkittens/hstu.py."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..hstu import hstu_attention
from ._attention import heads_divide
from ._record import Checks, Function, Operation, Operator, no_double_backward
from ._sharding import given, replicated


def _fake(q, k, v, *_rest):
    torch._check(
        q.dim() == 3 and k.dim() == 3 and v.dim() == 3,
        lambda: f"hipkittens::hstu_attention: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )
    return q.new_empty((*q.shape[:2], v.shape[2]))


def _backward_fake(grad_out, q, k, v, *_rest):
    torch._check(
        grad_out.shape[:2] == q.shape[:2],
        lambda: (
            f"hipkittens::hstu_attention_backward: grad_out is {tuple(grad_out.shape)}, q is {tuple(q.shape)}"
        ),
    )
    return tuple(rows.new_empty(rows.shape) for rows in (q, k, v))


def _setup(ctx, inputs, output):
    *tensors, ctx.max_seqlen, ctx.scale, ctx.causal, ctx.max_attn_len, ctx.contextual_seq_len = inputs
    ctx.save_for_backward(*tensors)


@_backend.interruptible
def _backward(ctx, grad_out):
    options = ctx.max_seqlen, ctx.scale, ctx.causal, ctx.max_attn_len, ctx.contextual_seq_len
    gradients = call("hstu_attention_backward", grad_out, *ctx.saved_tensors, *options)
    wanted = (one if needed else None for one, needed in zip(gradients, ctx.needs_input_grad, strict=False))
    return *wanted, *[None] * 7


def _pairs(cu_seqlens, max_seqlen) -> int:
    """Pairs of rows over all sequences. If only shapes are known, as if each were the longest."""
    if isinstance(cu_seqlens, torch.Tensor) and cu_seqlens.device.type != "meta":
        return int(cu_seqlens.diff().long().square().sum())
    shape = cu_seqlens.shape if isinstance(cu_seqlens, torch.Tensor) else cu_seqlens
    return (shape[0] - 1) * max_seqlen**2


def _flops(q, k, v, cu_seqlens, num_targets, max_seqlen, *_options, out_val=None, **_kwargs) -> int:
    """Two GEMMs over all pairs of rows; masks are not subtracted."""
    return 2 * q.shape[1] * (q.shape[2] + v.shape[2]) * _pairs(cu_seqlens, max_seqlen)


def _backward_flops(
    grad_out, q, k, v, cu_seqlens, num_targets, max_seqlen, *_options, out_val=None, **_kwargs
) -> int:
    """Five GEMMs, one of them repeated: further recomputation in the kernels is not counted."""
    return 2 * q.shape[1] * (3 * q.shape[2] + 2 * v.shape[2]) * _pairs(cu_seqlens, max_seqlen)


def _by_heads(rows: int, results: int):
    """Strategies for an operator whose first arguments are this many tensors of rows and heads; k is the last but one."""

    def strategies(*arguments):
        from torch.distributed.tensor import Replicate, Shard

        found = [replicated(arguments, results)]
        if heads_divide(arguments[rows - 2], 1):
            num_targets = arguments[rows + 1]
            inputs = [Shard(1)] * rows + [Replicate(), given(num_targets, Replicate())]
            found.append(([Shard(1)] * results, inputs + [None] * 5))
        return found

    return strategies


def _arguments(tensor, dtype):
    ends = tensor(2, dtype=torch.int32).new_tensor([0, 32])
    return *(tensor(32, 4, 64, dtype=dtype) for _ in range(3)), ends, 32


def _checks() -> Checks:
    from ._hstu_attention_checks import CHECKS

    return CHECKS


OPERATION = Operation(
    name="hstu_attention",
    folder="attention",
    kinds=("pointwise_forward", "pointwise_backward"),
    functions=(Function(hstu_attention, _arguments),),
    operators=(
        Operator(
            "hstu_attention",
            _fake,
            _backward,
            _setup,
            flops=_flops,
            flops_of_tensors=True,
            sharding=_by_heads(3, 1),
            first_option=5,
        ),
        Operator(
            "hstu_attention_backward",
            _backward_fake,
            no_double_backward("hstu_attention", "PyTorch's own operations"),
            flops=_backward_flops,
            flops_of_tensors=True,
            sharding=_by_heads(4, 3),
            first_option=6,
        ),
    ),
    checks=_checks,
    order=6,
)
