# SPDX-License-Identifier: MIT
"""Shapes, derivatives and FLOP count of torch.ops.hipkittens.attention_backward, and the derivative of attention_forward."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import register_flop_formula


@torch.library.register_fake("hipkittens::attention_backward")
def _fake(grad_out, grad_lse, q, k, v, out, lse, scale, causal, window_left, window_right):
    torch._check(
        grad_out.shape == q.shape,
        lambda: f"hipkittens::attention_backward: grad_out is {tuple(grad_out.shape)}, q is {tuple(q.shape)}",
    )
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup(ctx, inputs, output) -> None:
    q, k, v, *ctx.options = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output)


def _backward(ctx, grad_out, grad_lse):
    q, k, v, out, lse = ctx.saved_tensors
    if grad_out is None and grad_lse is None:
        return (None,) * 7
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    gradients = torch.ops.hipkittens.attention_backward(grad_out, grad_lse, q, k, v, out, lse, *ctx.options)
    needed = (
        gradient if needs else None for gradient, needs in zip(gradients, ctx.needs_input_grad, strict=False)
    )
    return *needed, None, None, None, None


def _no_double_backward(ctx, *_gradients):
    raise NotImplementedError(
        "hipkittens: the gradient of attention cannot be differentiated again; "
        "use torch.nn.functional.scaled_dot_product_attention where double backward is needed"
    )


torch.library.register_autograd("hipkittens::attention_forward", _backward, setup_context=_setup)
torch.library.register_autograd("hipkittens::attention_backward", _no_double_backward)


@register_flop_formula(torch.ops.hipkittens.attention_backward)
def _flops(grad_out_shape, grad_lse_shape, q_shape, k_shape, *_args, out_shape=None, **_kwargs) -> int:
    """Five products, one of them repeated, as PyTorch counts its own: what kernels recompute beyond that is not counted."""
    batch, rows, heads, size = q_shape
    return 10 * batch * heads * rows * k_shape[1] * size
