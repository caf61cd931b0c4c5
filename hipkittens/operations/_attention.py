# SPDX-License-Identifier: MIT
"""Shapes, derivatives, FLOP counts and shardings of the operators of attention and attention_varlen."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from .. import _backend
from .._call import call
from ._record import Operator, no_double_backward
from ._sharding import given, is_tensor, replicated

# For kernels with a softmax.
KINDS = ("forward", "combine", "backward", "delta", "convert", "sinks")


class Options(NamedTuple):
    """The last arguments of every operator, in order."""

    scale: float
    causal: bool
    window_left: int
    window_right: int
    dropout_p: float = 0.0
    seed: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    softcap: float = 0.0
    alibi_slopes: torch.Tensor | None = None


def forward_fake(q, k, v, *_options):
    torch._check(
        q.dim() == 4 and k.dim() == 4 and v.dim() == 4,
        lambda: f"hipkittens::attention_forward: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )
    batch, rows, heads, _ = q.shape
    out = q.new_empty((batch, rows, heads, v.shape[-1]))
    return out, q.new_empty((batch, heads, rows), dtype=torch.float32)


def varlen_forward_fake(q, k, v, cu_seqlens_q, cu_seqlens_k, *_options):
    torch._check(
        q.dim() == 3 and k.dim() == 3 and v.dim() == 3,
        lambda: f"hipkittens::attention_varlen_forward: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )
    rows, heads, _ = q.shape
    return q.new_empty((rows, heads, v.shape[-1])), q.new_empty((heads, rows), dtype=torch.float32)


def backward_fake(name: str, own: int):
    """own: arguments of the operator between lse and the options."""

    def fake(grad_out, grad_lse, q, k, v, *rest):
        torch._check(
            grad_out.shape[:-1] == q.shape[:-1],
            lambda: f"hipkittens::{name}: grad_out is {tuple(grad_out.shape)}, q is {tuple(q.shape)}",
        )
        sinks = Options(*rest[2 + own :]).sinks
        return (
            q.new_empty(q.shape),
            k.new_empty(k.shape),
            v.new_empty(v.shape),
            q.new_empty((0,) if sinks is None else sinks.shape, dtype=torch.float32),
        )

    return fake


def setup(ctx, inputs, output) -> None:
    """Inputs are q, k, v, then the operator's own tensors, then `Options`."""
    q, k, v, *rest = inputs
    ctx.set_materialize_grads(False)
    ctx.places = [place for place, value in enumerate(rest) if isinstance(value, torch.Tensor)]
    ctx.save_for_backward(q, k, v, *output, *(rest[place] for place in ctx.places))
    for place in ctx.places:
        rest[place] = None
    ctx.options = rest


def backward_of(operator: str, own: int):
    """own: arguments of the operator between v and the options."""

    @_backend.interruptible
    def backward(ctx, grad_out, grad_lse):
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        nothing = (None,) * len(ctx.options)
        if grad_out is None and grad_lse is None:
            return None, None, None, *nothing
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        options = list(ctx.options)
        for place, tensor in zip(ctx.places, tensors, strict=True):
            options[place] = tensor
        sinks = own + Options._fields.index("sinks")
        with_sinks = sinks < len(options) and options[sinks] is not None
        results = (q, k, v, out, lse)
        *gradients, of_sinks = call(operator, grad_out, None if with_sinks else grad_lse, *results, *options)
        if with_sinks and grad_lse is not None:
            # The LSE is that of the keys, whose weights add up to 1 there.
            options[sinks] = None
            of_lse = call(operator, torch.zeros_like(out), grad_lse, *results, *options)
            gradients = [one + other for one, other in zip(gradients, of_lse, strict=False)]
        needs = ctx.needs_input_grad
        if any(needs[3 + sinks : 4 + sinks]):  # options at their defaults may be omitted
            nothing = (*nothing[:sinks], of_sinks, *nothing[sinks + 1 :])
        of_q, of_k, of_v = gradients
        return of_q if needs[0] else None, of_k if needs[1] else None, of_v if needs[2] else None, *nothing

    return backward


def forward_flops(q_shape, k_shape, v_shape, *_args, out_shape=None, **_kwargs) -> int:
    """Two GEMMs over all pairs of query and key, as PyTorch counts its own attention: masks are not subtracted."""
    batch, rows, heads, size = q_shape
    return 2 * batch * heads * rows * k_shape[1] * (size + v_shape[-1])


def backward_flops(
    grad_out_shape, grad_lse_shape, q_shape, k_shape, v_shape, *_args, out_shape=None, **_kwargs
) -> int:
    """Five GEMMs, one of them repeated, as PyTorch counts its own: further recomputation in the kernels is not counted."""
    batch, rows, heads, size = q_shape
    return 2 * batch * heads * rows * k_shape[1] * (3 * size + 2 * v_shape[-1])


def _pairs(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k) -> int:
    """Pairs of query and key over all sequences. If only shapes are known, as if each were the longest (PyTorch's rule)."""
    if isinstance(cu_seqlens_q, torch.Tensor) and cu_seqlens_q.device.type != "meta":
        return int((cu_seqlens_q.diff().long() * cu_seqlens_k.diff().long()).sum())
    shape = cu_seqlens_q.shape if isinstance(cu_seqlens_q, torch.Tensor) else cu_seqlens_q
    return (shape[0] - 1) * max_seqlen_q * max_seqlen_k


def varlen_forward_flops(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_q, max_k, *_args, out_val=None, **_kwargs
) -> int:
    return 2 * q.shape[1] * (q.shape[2] + v.shape[2]) * _pairs(cu_seqlens_q, cu_seqlens_k, max_q, max_k)


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
    return (
        2 * q.shape[1] * (3 * q.shape[2] + 2 * v.shape[2]) * _pairs(cu_seqlens_q, cu_seqlens_k, max_q, max_k)
    )


def heads_divide(tensor, axis: int) -> bool:
    """Heads of query and key keep their ratio only if every rank gets the same number."""
    return tensor.shape[axis] % math.prod(tensor.mesh.shape) == 0


def _splits(options: Options) -> bool:
    """Whether ranks can process parts of the problem. The seed of dropout counts from the first head."""
    return options.seed is None or not is_tensor(options.seed)


def _options_of(options: Options, sinks, slopes) -> list:
    """How the options of each rank are placed."""
    return [*[None] * 6, given(options.sinks, sinks), None, given(options.alibi_slopes, slopes)]


def _by_heads(options: Options) -> list:
    from torch.distributed.tensor import Shard

    slopes = options.alibi_slopes
    return _options_of(options, Shard(0), Shard(0 if slopes is None else len(slopes.shape) - 1))


def _by_batch(options: Options) -> list:
    from torch.distributed.tensor import Replicate, Shard

    slopes = options.alibi_slopes
    each = slopes is not None and len(slopes.shape) == 2
    return _options_of(options, Replicate(), Shard(0) if each else Replicate())


def forward_sharding(q, k, v, *rest):
    from torch.distributed.tensor import Shard

    options = Options(*rest)
    found = [replicated((q, k, v, *options), 2)]
    if _splits(options):
        found.append(([Shard(0), Shard(0)], [Shard(0)] * 3 + _by_batch(options)))
        if heads_divide(k, 2):
            found.append(([Shard(2), Shard(1)], [Shard(2)] * 3 + _by_heads(options)))
    return found


def backward_sharding(grad_out, grad_lse, q, k, v, out, lse, *rest):
    from torch.distributed.tensor import Partial, Shard

    options = Options(*rest)
    found = [replicated((grad_out, grad_lse, q, k, v, out, lse, *options), 4)]

    def strategy(rows, sums, of_sinks, placed):
        return [*[rows] * 3, of_sinks], [rows, given(grad_lse, sums), *[rows] * 4, sums, *placed]

    if _splits(options):
        found.append(strategy(Shard(0), Shard(0), Partial(), _by_batch(options)))
        if heads_divide(k, 2):
            found.append(strategy(Shard(2), Shard(1), Shard(0), _by_heads(options)))
    return found


def varlen_forward_sharding(q, k, v, cu_seqlens_q, cu_seqlens_k, max_q, max_k, *rest):
    from torch.distributed.tensor import Replicate, Shard

    options = Options(*rest)
    found = [replicated((q, k, v, cu_seqlens_q, cu_seqlens_k, max_q, max_k, *options), 2)]
    if _splits(options) and heads_divide(k, 1):
        inputs = [Shard(1)] * 3 + [Replicate()] * 2 + [None] * 2
        found.append(([Shard(1), Shard(0)], inputs + _by_heads(options)))
    return found


def varlen_backward_sharding(
    grad_out, grad_lse, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, max_q, max_k, *rest
):
    from torch.distributed.tensor import Replicate, Shard

    options = Options(*rest)
    arguments = (grad_out, grad_lse, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, max_q, max_k, *options)
    found = [replicated(arguments, 4)]
    if _splits(options) and heads_divide(k, 1):
        heads, sums = Shard(1), Shard(0)
        inputs = [heads, given(grad_lse, sums), heads, heads, heads, heads, sums, Replicate(), Replicate()]
        found.append(([*[heads] * 3, sums], [*inputs, None, None, *_by_heads(options)]))
    return found


OPERATORS = (
    Operator(
        "attention_forward",
        forward_fake,
        backward_of("attention_backward", 0),
        setup,
        flops=forward_flops,
        sharding=forward_sharding,
        first_option=3,
    ),
    Operator(
        "attention_backward",
        backward_fake("attention_backward", 0),
        no_double_backward("attention", "torch.nn.functional.scaled_dot_product_attention"),
        flops=backward_flops,
        sharding=backward_sharding,
        first_option=7,
    ),
)
VARLEN_OPERATORS = (
    Operator(
        "attention_varlen_forward", varlen_forward_fake, backward_of("attention_varlen_backward", 4), setup,
        flops=varlen_forward_flops, flops_of_tensors=True, sharding=varlen_forward_sharding, first_option=5,
    ),
    Operator(
        "attention_varlen_backward", backward_fake("attention_varlen_backward", 4), no_double_backward("attention", "torch.nn.functional.scaled_dot_product_attention"),
        flops=varlen_backward_flops, flops_of_tensors=True, sharding=varlen_backward_sharding, first_option=9,
    ),
)  # fmt: skip
