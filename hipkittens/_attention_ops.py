# SPDX-License-Identifier: MIT
"""Shapes and derivatives of torch.ops.hipkittens.attention_forward, attention_varlen_forward and their backwards."""

from __future__ import annotations

import torch

from . import _backend


@torch.library.register_fake("hipkittens::attention_forward")
def _forward_fake(q, k, v, *_options):
    torch._check(
        q.dim() == 4 and k.dim() == 4 and v.dim() == 4,
        lambda: f"hipkittens::attention_forward: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )
    batch, rows, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads, rows), dtype=torch.float32)


@torch.library.register_fake("hipkittens::attention_varlen_forward")
def _varlen_forward_fake(q, k, v, cu_seqlens_q, cu_seqlens_k, *_options):
    torch._check(
        q.dim() == 3 and k.dim() == 3 and v.dim() == 3,
        lambda: f"hipkittens::attention_varlen_forward: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )
    rows, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((heads, rows), dtype=torch.float32)


def _backward_fake(name: str):
    def fake(grad_out, grad_lse, q, k, v, *_rest):
        torch._check(
            grad_out.shape == q.shape,
            lambda: f"hipkittens::{name}: grad_out is {tuple(grad_out.shape)}, q is {tuple(q.shape)}",
        )
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)

    return fake


def _setup(ctx, inputs, output) -> None:
    """Inputs are q, k, v, then the operator's own tensors and options, of which the last is the seed."""
    q, k, v, *rest = inputs
    ctx.set_materialize_grads(False)
    ctx.is_tensor = [isinstance(value, torch.Tensor) for value in rest]
    ctx.options = [None if isinstance(value, torch.Tensor) else value for value in rest]
    ctx.save_for_backward(q, k, v, *output, *(value for value in rest if isinstance(value, torch.Tensor)))


def _backward(operator):
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
        gradients = operator(grad_out, grad_lse, q, k, v, out, lse, *options)
        needed = (
            gradient if needs else None
            for gradient, needs in zip(gradients, ctx.needs_input_grad, strict=False)
        )
        return *needed, *nothing

    return backward


def _no_double_backward(ctx, *_gradients):
    raise NotImplementedError(
        "hipkittens: the gradient of attention cannot be differentiated again; "
        "use torch.nn.functional.scaled_dot_product_attention where double backward is needed"
    )


for _name in ("attention", "attention_varlen"):
    _operator = getattr(torch.ops.hipkittens, f"{_name}_backward")
    torch.library.register_fake(f"hipkittens::{_name}_backward", _backward_fake(f"{_name}_backward"))
    torch.library.register_autograd(
        f"hipkittens::{_name}_forward", _backward(_operator), setup_context=_setup
    )
    torch.library.register_autograd(f"hipkittens::{_name}_backward", _no_double_backward)
