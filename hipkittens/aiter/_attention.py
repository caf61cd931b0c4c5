# SPDX-License-Identifier: MIT
"""Attention to paged caches by AITER's names."""

from __future__ import annotations

import torch

from .. import attention_mla, attention_mla_sparse, attention_paged
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
    """hipkittens.attention_paged of q [tokens, heads, D] to caches [blocks, block_size, key heads, D], into out. Caches of 8 bits have
    k_descale and v_descale of one element, or as in attention_paged.

    max_seqlen_k, by which AITER chooses among its kernels, is ignored. Unlike in AITER, it may be called without a causal mask.
    """
    for name, value in {"q_descale": q_descale, "output_scale": output_scale, "qq_bias": qq_bias}.items():
        if value is not None:
            refuse("unified_attention", name, "given", "pass None, with 16-bit queries and results")
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
        k_scale=k_descale,
        v_scale=v_descale,
        out=out,
    )


def mla_decode_fwd(
    q: torch.Tensor,
    kv_buffer: torch.Tensor,
    o: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    max_seqlen_q: int,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    num_kv_splits: int | None = None,
    num_kv_splits_indptr: torch.Tensor | None = None,
    work_meta_data: torch.Tensor | None = None,
    work_indptr: torch.Tensor | None = None,
    work_info_set: torch.Tensor | None = None,
    reduce_indptr: torch.Tensor | None = None,
    reduce_final_map: torch.Tensor | None = None,
    reduce_partial_map: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    kv_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """hipkittens.attention_mla, causal, of q [tokens, heads, 576] to kv_buffer [pages, page_size, 1, 576], into o [tokens, heads, 512].

    Sequence b has tokens qo_indptr[b] .. qo_indptr[b + 1] - 1 and the pages kv_indices[kv_indptr[b]: kv_indptr[b + 1]], the last one
    filled up to kv_last_page_lens[b]. sm_scale defaults to 1 / sqrt(576), as in AITER. kv_scale is that of a buffer of 8-bit floats.
    num_kv_splits_indptr and the work and reduce tensors, by which AITER divides its own kernels' work, are ignored. Returns o as
    [tokens, 1, heads, 512] and the LSE [tokens, heads]: there is one part, which is the result.
    """
    if logit_cap > 0:
        refuse("mla_decode_fwd", "logit_cap", logit_cap, "pass 0")
    if q_scale is not None:
        refuse("mla_decode_fwd", "q_scale", "given", "pass None, with 16-bit queries")
    pages = kv_indptr.diff()
    lengths = (pages - 1) * kv_buffer.shape[1] + kv_last_page_lens
    out, lse = attention_mla(
        q,
        kv_buffer,
        kv_indices,
        lengths * (pages > 0),
        qo_indptr,
        max_seqlen_q,
        scale=kv_buffer.shape[-1] ** -0.5 if sm_scale is None else sm_scale,
        table_starts=kv_indptr[:-1],
        kv_scale=kv_scale,
        num_splits=num_kv_splits or 0,
        out=o,
        return_lse=True,
    )
    return out.unsqueeze(1), lse.T


def unified_attention_sparse_mla(
    q: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    seqused_k: torch.Tensor,
    max_seqlen_k: int,
    softmax_scale: float,
    topk_indices: torch.Tensor,
    block_table: torch.Tensor,
    kv_lora_rank: int,
) -> None:
    """hipkittens.attention_mla_sparse of q [tokens, heads, 576] to kv [blocks, block_size, 1, 576], into out [tokens, heads, 512].

    topk_indices [tokens, k]: block * block_size + position, -1 for none; a token with no key gets 0. Any number of heads. cu_seqlens_q,
    max_seqlen_q, seqused_k, max_seqlen_k and block_table are ignored: AITER's kernel uses them only to find a workgroup's tokens, not to
    mask. kv_lora_rank is 512.
    """
    attention_mla_sparse(q, kv, topk_indices, scale=softmax_scale, head_dim_v=kv_lora_rank, out=out)
