# SPDX-License-Identifier: MIT
"""Attention for training by AITER's names."""

from __future__ import annotations

import torch

from .. import flash_attn
from ..attention import attention, attention_varlen
from ._results import put, refuse

# The rounding of P to bfloat16 in AITER's kernels; here it is always to nearest even.
_CONVERSIONS = (0, 1, 2)


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    bias: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = True,
    return_lse: bool = False,
    return_attn_probs: bool = False,
    how_v3_bf16_cvt: int = 1,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_kv: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """hipkittens.attention of q (B, N, H, D), k (B, N_k, H_k, D) and v (B, N_k, H_k, D_v); with return_lse also its float32 (B, H, N).

    how_v3_bf16_cvt chooses a rounding mode of AITER's kernels; here rounding is always to nearest even.
    """
    name = "flash_attn_func"
    _refuse(
        name, return_attn_probs, how_v3_bf16_cvt, bias=bias, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv
    )  # fmt: skip
    out, lse = attention(
        q, k, v, causal=causal, scale=softmax_scale, window_size=window_size, dropout_p=dropout_p,
        alibi_slopes=alibi_slopes, deterministic=deterministic, return_lse=True,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    min_seqlen_q: int = 0,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    logits_soft_cap: float = 0.0,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    bias: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    return_attn_probs: bool = False,
    how_v3_bf16_cvt: int = 1,
    block_table: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    cu_seqlens_q_padded: torch.Tensor | None = None,
    cu_seqlens_k_padded: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """hipkittens.attention_varlen of q (T, H, D), k (T_k, H_k, D) and v (T_k, H_k, D_v), or with block_table attention_paged with caches
    k and v (blocks, block size, H_k, D), without a gradient; with return_lse also its float32 (H, T). Results are written to `out` if it is
    passed.

    min_seqlen_q and how_v3_bf16_cvt, by which AITER chooses among its kernels, have no effect; P is rounded to nearest even.
    """
    name = "flash_attn_varlen_func"
    _refuse(
        name, return_attn_probs, how_v3_bf16_cvt, bias=bias, cu_seqlens_q_padded=cu_seqlens_q_padded,
        cu_seqlens_k_padded=cu_seqlens_k_padded,
    )  # fmt: skip
    if block_table is not None:
        result, lse, _ = flash_attn.flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
            logits_soft_cap, alibi_slopes, deterministic, True, block_table,
        )  # fmt: skip
    else:
        result, lse = attention_varlen(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=causal, scale=softmax_scale,
            window_size=window_size, dropout_p=dropout_p, softcap=logits_soft_cap, alibi_slopes=alibi_slopes,
            deterministic=deterministic, return_lse=True,
        )  # fmt: skip
    if out is not None:
        if torch.is_grad_enabled() and result.requires_grad:
            refuse(
                name,
                "out",
                "given while q, k or v take a gradient",
                "pass None, or call it under torch.no_grad()",
            )
        put(name, "out", out, result)
        result = out
    return (result, lse) if return_lse else result


def _refuse(function: str, return_attn_probs: bool, how_v3_bf16_cvt: int, **tensors: object) -> None:
    for name, value in tensors.items():
        if value is not None:
            refuse(function, name, "given", "pass None")
    if return_attn_probs:
        refuse(function, "return_attn_probs", "True", "return_lse=True gives the LSE alone")
    if how_v3_bf16_cvt not in _CONVERSIONS:
        raise ValueError(
            f"hipkittens.aiter.{function}: how_v3_bf16_cvt is {how_v3_bf16_cvt!r}; allowed: 0, 1, 2"
        )
