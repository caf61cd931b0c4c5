# SPDX-License-Identifier: MIT
"""Attention to paged caches by AITER's names."""

from __future__ import annotations

import torch

from .. import attention_paged
from ._results import refuse


def unified_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    seqused_k: torch.Tensor,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    block_table: torch.Tensor,
    softcap: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None = None,
    output_scale: torch.Tensor | None = None,
    qq_bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """hipkittens.attention_paged of q [tokens, heads, D] to caches [blocks, block_size, key heads, D], into out.

    max_seqlen_k, by which AITER chooses among its kernels, is not looked at. Without a causal mask it works here, too.
    """
    scales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    for name, value in (scales | {"output_scale": output_scale, "qq_bias": qq_bias}).items():
        if value is not None:
            refuse("unified_attention", name, "given", "pass None, with 16-bit caches and results")
    attention_paged(
        q,
        k,
        v,
        block_table,
        seqused_k,
        cu_seqlens_q,
        max_seqlen_q,
        causal=causal,
        scale=softmax_scale,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        out=out,
    )
