# SPDX-License-Identifier: MIT
"""Logits of an indexer by AITER's names."""

from __future__ import annotations

import torch

from .. import mqa_logits, mqa_logits_paged


def fp8_mqa_logits(
    Q: torch.Tensor,
    KV: torch.Tensor,
    kv_scales: torch.Tensor,
    weights: torch.Tensor,
    cu_starts: torch.Tensor,
    cu_ends: torch.Tensor,
) -> torch.Tensor:
    """hipkittens.mqa_logits of Q [tokens, heads, D] and KV [keys, D]: float32 [tokens, keys], -inf where a token does not see a key. Any
    number of heads. Scales may be negative: the products are clamped at 0 before they are scaled.
    """
    return mqa_logits(Q, KV, kv_scales, weights, cu_starts, cu_ends)


def deepgemm_fp8_paged_mqa_logits(
    q_fp8: torch.Tensor,
    kv_cache_fp8: torch.Tensor,
    weights: torch.Tensor,
    out_logits: torch.Tensor,
    context_lens: torch.Tensor,
    kv_indices: torch.Tensor,
    max_model_len: int,
    ChunkK: int = 64,
    SplitKV: int = 5,
) -> None:
    """hipkittens.mqa_logits_paged of q_fp8 [batch, next_n, heads, D] and kv_cache_fp8 [blocks, 1, 1, D + 4], into out_logits
    [batch * next_n, max_model_len], -inf where a token does not see a key.

    The last token of a sequence sees all of its context_lens keys, each token before it one key fewer; AITER's kernel hides one more key
    from each token after the first, and does not write past the last chunk. Blocks of any size. ChunkK and SplitKV, by which AITER divides
    its work, are ignored.
    """
    logits = mqa_logits_paged(q_fp8, kv_cache_fp8, weights, context_lens, kv_indices, max_model_len)
    out_logits.copy_(logits)
