# SPDX-License-Identifier: MIT
"""Loads the operators of torch.ops.hipkittens, and gives them shapes, derivatives and FLOP counts."""

from __future__ import annotations

import torch

from . import _backend, _installation, _library

try:
    _installation.require_whole(_installation.OPERATORS)
    torch.ops.load_library(str(_installation.OPERATORS))
except OSError as error:
    raise ImportError(_installation.why_not_loaded(error)) from error
_library.connect(_backend.arch(), _backend.simulates_cpu_tensors)

_gemm = torch.ops.hipkittens.gemm


@torch.library.register_fake("hipkittens::gemm")
def _gemm_fake(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype, deterministic: bool
) -> torch.Tensor:
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"hipkittens::gemm: {tuple(a.shape)} @ {tuple(b.shape)}")
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=out_dtype)


def _gemm_setup(ctx, inputs, output) -> None:
    a, b, bias, _, deterministic = inputs
    ctx.save_for_backward(a, b)
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.deterministic = deterministic


@_backend.interruptible
def _gemm_backward(ctx, grad):
    # Built from the operator itself, so that it can be differentiated again; transposed views are orientations of the
    # kernel and not copies.
    a, b = ctx.saved_tensors
    grad_a = grad_b = grad_bias = None
    rounded = grad.to(a.dtype)
    if ctx.needs_input_grad[0]:
        grad_a = _gemm(rounded, b.mT, None, a.dtype, ctx.deterministic)
    if ctx.needs_input_grad[1]:
        grad_b = _gemm(a.mT, rounded, None, b.dtype, ctx.deterministic)
    if ctx.needs_input_grad[2]:
        grad_bias = grad.sum(dim=tuple(range(grad.dim() - 1)), dtype=torch.float32).to(ctx.bias_dtype)
    return grad_a, grad_b, grad_bias, None, None


torch.library.register_autograd("hipkittens::gemm", _gemm_backward, setup_context=_gemm_setup)


from . import _attention_ops, _norm_ops, _rotary_ops  # noqa: E402, F401
from ._after_import import after_import  # noqa: E402

# torch's FLOP counter imports Triton where there is one, which takes longer than all else here.
after_import("torch.utils.flop_counter", "hipkittens._flop_formulas")
