# SPDX-License-Identifier: MIT
"""Shapes, derivatives, FLOP counts and shardings of the operators of attention and attention_varlen."""

from __future__ import annotations

import math

import torch

from .. import _backend
from .._call import call
from ._record import Operator, no_double_backward
from ._sharding import given, is_tensor, replicated


def forward_fake(q, k, v, *_options):
    torch._check(
        q.dim() == 4 and k.dim() == 4 and v.dim() == 4,
        lambda: f"hipkittens::attention_forward: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )
    batch, rows, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads, rows), dtype=torch.float32)


def varlen_forward_fake(q, k, v, cu_seqlens_q, cu_seqlens_k, *_options):
    torch._check(
        q.dim() == 3 and k.dim() == 3 and v.dim() == 3,
        lambda: f"hipkittens::attention_varlen_forward: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )
    rows, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((heads, rows), dtype=torch.float32)


def backward_fake(name: str):
    def fake(grad_out, grad_lse, q, k, v, *_rest):
        torch._check(
            grad_out.shape == q.shape,
            lambda: f"hipkittens::{name}: grad_out is {tuple(grad_out.shape)}, q is {tuple(q.shape)}",
        )
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)

    return fake


def setup(ctx, inputs, output) -> None:
    """Inputs are q, k, v, then the operator's own tensors and options, of which the last is the seed."""
    q, k, v, *rest = inputs
    ctx.set_materialize_grads(False)
    ctx.is_tensor = [isinstance(value, torch.Tensor) for value in rest]
    ctx.options = [None if isinstance(value, torch.Tensor) else value for value in rest]
    ctx.save_for_backward(q, k, v, *output, *(value for value in rest if isinstance(value, torch.Tensor)))


def backward_of(operator: str):
    @_backend.interruptible
    def backward(ctx, grad_out, grad_lse):
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        nothing = (None,) * len(ctx.options)
        if grad_out is None and grad_lse is None:
            return None, None, None, *nothing
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        held = iter(tensors)
        options = (
            next(held) if is_tensor else value
            for is_tensor, value in zip(ctx.is_tensor, ctx.options, strict=True)
        )
        gradients = call(operator, grad_out, grad_lse, q, k, v, out, lse, *options)
        needed = (
            gradient if needs else None
            for gradient, needs in zip(gradients, ctx.needs_input_grad, strict=False)
        )
        return *needed, *nothing

    return backward


def forward_flops(q_shape, k_shape, *_args, out_shape=None, **_kwargs) -> int:
    """Two products over all pairs of query and key, as PyTorch counts its own attention: masks are not subtracted."""
    batch, rows, heads, size = q_shape
    return 4 * batch * heads * rows * k_shape[1] * size


def backward_flops(
    grad_out_shape, grad_lse_shape, q_shape, k_shape, *_args, out_shape=None, **_kwargs
) -> int:
    """Five products, one of them repeated, as PyTorch counts its own: what kernels recompute beyond that is not counted."""
    batch, rows, heads, size = q_shape
    return 10 * batch * heads * rows * k_shape[1] * size


def _pairs(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k) -> int:
    """Pairs of query and key over all sequences. Where only shapes are known, as if each were the longest (PyTorch's rule)."""
    if isinstance(cu_seqlens_q, torch.Tensor) and cu_seqlens_q.device.type != "meta":
        return int((cu_seqlens_q.diff().long() * cu_seqlens_k.diff().long()).sum())
    shape = cu_seqlens_q.shape if isinstance(cu_seqlens_q, torch.Tensor) else cu_seqlens_q
    return (shape[0] - 1) * max_seqlen_q * max_seqlen_k


def varlen_forward_flops(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_q, max_k, *_args, out_val=None, **_kwargs
) -> int:
    return 4 * q.shape[1] * q.shape[2] * _pairs(cu_seqlens_q, cu_seqlens_k, max_q, max_k)


def varlen_backward_flops(
    grad_out,
    grad_lse,
    q,
    k,
    v,
    out,
    lse,
    cu_seqlens_q,
    cu_seqlens_k,
    max_q,
    max_k,
    *_args,
    out_val=None,
    **_kwargs,
) -> int:
    return 10 * q.shape[1] * q.shape[2] * _pairs(cu_seqlens_q, cu_seqlens_k, max_q, max_k)


def _heads_divide(tensor, axis: int) -> bool:
    """Heads of query and key keep their ratio only where every rank gets as many."""
    return tensor.shape[axis] % math.prod(tensor.mesh.shape) == 0


def forward_sharding(q, k, v, *options):
    from torch.distributed.tensor import Shard

    nothing = [None] * len(options)
    found = [replicated((q, k, v, *options), 2)]
    if options[-1] is None or not is_tensor(options[-1]):  # the seed of dropout counts from the first head
        found.append(([Shard(0), Shard(0)], [Shard(0)] * 3 + nothing))
        if _heads_divide(k, 2):
            found.append(([Shard(2), Shard(1)], [Shard(2)] * 3 + nothing))
    return found


def backward_sharding(grad_out, grad_lse, q, k, v, out, lse, *options):
    from torch.distributed.tensor import Shard

    nothing = [None] * len(options)
    found = [replicated((grad_out, grad_lse, q, k, v, out, lse, *options), 3)]

    def strategy(rows, sums):
        return [rows] * 3, [rows, given(grad_lse, sums), rows, rows, rows, rows, sums, *nothing]

    if not is_tensor(options[-1]):
        found.append(strategy(Shard(0), Shard(0)))
        if _heads_divide(k, 2):
            found.append(strategy(Shard(2), Shard(1)))
    return found


def varlen_forward_sharding(q, k, v, cu_seqlens_q, cu_seqlens_k, *options):
    from torch.distributed.tensor import Replicate, Shard

    found = [replicated((q, k, v, cu_seqlens_q, cu_seqlens_k, *options), 2)]
    if not is_tensor(options[-1]) and _heads_divide(k, 1):
        inputs = [Shard(1)] * 3 + [Replicate()] * 2 + [None] * len(options)
        found.append(([Shard(1), Shard(0)], inputs))
    return found


def varlen_backward_sharding(grad_out, grad_lse, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *options):
    from torch.distributed.tensor import Replicate, Shard

    arguments = (grad_out, grad_lse, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *options)
    found = [replicated(arguments, 3)]
    if not is_tensor(options[-1]) and _heads_divide(k, 1):
        heads, sums = Shard(1), Shard(0)
        inputs = [heads, given(grad_lse, sums), heads, heads, heads, heads, sums, Replicate(), Replicate()]
        found.append(([heads] * 3, inputs + [None] * len(options)))
    return found


OPERATORS = (
    Operator(
        "attention_forward",
        forward_fake,
        backward_of("attention_backward"),
        setup,
        flops=forward_flops,
        sharding=forward_sharding,
        first_option=3,
    ),
    Operator(
        "attention_backward",
        backward_fake("attention_backward"),
        no_double_backward("attention", "torch.nn.functional.scaled_dot_product_attention"),
        flops=backward_flops,
        sharding=backward_sharding,
        first_option=7,
    ),
)
VARLEN_OPERATORS = (
    Operator(
        "attention_varlen_forward", varlen_forward_fake, backward_of("attention_varlen_backward"), setup,
        flops=varlen_forward_flops, flops_of_tensors=True, sharding=varlen_forward_sharding, first_option=5,
    ),
    Operator(
        "attention_varlen_backward", backward_fake("attention_varlen_backward"), no_double_backward("attention", "torch.nn.functional.scaled_dot_product_attention"),
        flops=varlen_backward_flops, flops_of_tensors=True, sharding=varlen_backward_sharding, first_option=9,
    ),
)  # fmt: skip
