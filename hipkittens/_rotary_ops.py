# SPDX-License-Identifier: MIT
"""Shapes and derivatives of torch.ops.hipkittens.rotary and rotary_qk, and their versions in place."""

from __future__ import annotations

import torch

from . import _backend

_rotary = torch.ops.hipkittens.rotary
_rotary_qk = torch.ops.hipkittens.rotary_qk


@torch.library.register_fake("hipkittens::rotary")
def _rotary_fake(x, cos, sin, positions, offset, interleaved, heads_first, inverse):
    return x.new_empty(x.shape)


@torch.library.register_fake("hipkittens::rotary_qk")
def _rotary_qk_fake(q, k, cos, sin, positions, offset, interleaved, heads_first, inverse):
    return q.new_empty(q.shape), k.new_empty(k.shape)


@torch.library.register_fake("hipkittens::rotary_")
def _rotary_in_place_fake(x, cos, sin, positions, offset, interleaved, heads_first, inverse):
    return None


@torch.library.register_fake("hipkittens::rotary_qk_")
def _rotary_qk_in_place_fake(q, k, cos, sin, positions, offset, interleaved, heads_first, inverse):
    return None


# The gradient is the rotation back: the operator itself, which can be differentiated again.


def _setup(ctx, inputs, output) -> None:
    *_, cos, sin, positions, offset, interleaved, heads_first, inverse = inputs
    ctx.save_for_backward(cos, sin, positions)
    ctx.flags = (offset, interleaved, heads_first, not inverse)


def _refuse_table_gradient(needs) -> None:
    if any(needs):
        raise NotImplementedError("hipkittens: rotary gives cos and sin no gradient; detach them")


@_backend.interruptible
def _rotary_backward(ctx, grad):
    _refuse_table_gradient(ctx.needs_input_grad[1:3])
    return _rotary(grad, *ctx.saved_tensors, *ctx.flags), *[None] * 7


@_backend.interruptible
def _rotary_qk_backward(ctx, grad_q, grad_k):
    _refuse_table_gradient(ctx.needs_input_grad[2:4])
    return *_rotary_qk(grad_q, grad_k, *ctx.saved_tensors, *ctx.flags), *[None] * 7


torch.library.register_autograd("hipkittens::rotary", _rotary_backward, setup_context=_setup)
torch.library.register_autograd("hipkittens::rotary_qk", _rotary_qk_backward, setup_context=_setup)
