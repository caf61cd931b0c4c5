# SPDX-License-Identifier: MIT
"""What FlopCounterMode counts for torch.ops.hipkittens. Imported with torch.utils.flop_counter, and not before."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import register_flop_formula


@register_flop_formula(torch.ops.hipkittens.gemm)
def _gemm_flops(a_shape, b_shape, *_args, out_shape=None, **_kwargs) -> int:
    flops = 2 * b_shape[-1]
    for size in a_shape:
        flops *= size
    return flops


@register_flop_formula(torch.ops.hipkittens.attention_forward)
def _forward_flops(q_shape, k_shape, *_args, out_shape=None, **_kwargs) -> int:
    """Two products over all pairs of query and key, as PyTorch counts its own attention: masks are not subtracted."""
    batch, rows, heads, size = q_shape
    return 4 * batch * heads * rows * k_shape[1] * size


@register_flop_formula(torch.ops.hipkittens.attention_backward)
def _backward_flops(
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


@register_flop_formula(torch.ops.hipkittens.attention_varlen_forward, get_raw=True)
def _varlen_forward_flops(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_q, max_k, *_args, out_val=None, **_kwargs
) -> int:
    return 4 * q.shape[1] * q.shape[2] * _pairs(cu_seqlens_q, cu_seqlens_k, max_q, max_k)


@register_flop_formula(torch.ops.hipkittens.attention_varlen_backward, get_raw=True)
def _varlen_backward_flops(
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
