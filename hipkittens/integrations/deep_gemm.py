# SPDX-License-Identifier: MIT
"""DeepGEMM's interface for the logits of an indexer: `from hipkittens.integrations import deep_gemm` instead of `import deep_gemm`.

    logits = deep_gemm.fp8_mqa_logits(q, (k, k_scale), weights, cu_seq_len_k_start, cu_seq_len_k_end)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(context_lens, 64, num_sms)
    logits = deep_gemm.fp8_paged_mqa_logits(q, cache, weights, context_lens, block_table, schedule, max_context_len)

They call hipkittens.mqa_logits and hipkittens.mqa_logits_paged, and support blocks of any size, any number of heads, and 16-bit operands
as well. DeepGEMM's matrix products are not included: use hipkittens.scaled_matmul and hipkittens.grouped_matmul.
"""

from __future__ import annotations

from typing import Any

import torch

from .._arguments import check_tensor, check_whole_number
from ..indexer_logits import mqa_logits, mqa_logits_paged

WHERE = "hipkittens.integrations.deep_gemm"


def fp8_mqa_logits(
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
) -> torch.Tensor:
    """Logits (tokens, keys) of q (tokens, heads, D) and kv, which is (k (keys, D), k_scale (keys,)): hipkittens.mqa_logits.

    Raises NotImplementedError for a max_seqlen_k other than 0, with which each row would begin at its own first key.
    """
    if max_seqlen_k:
        raise NotImplementedError(
            f"{WHERE}: max_seqlen_k is {max_seqlen_k}; rows that begin at their own first key have no kernel; pass 0"
        )
    if not isinstance(kv, (tuple, list)) or len(kv) != 2:
        raise TypeError(f"{WHERE}: kv is {type(kv).__name__}; it must be a pair of keys and their scales")
    k, k_scale = kv
    return mqa_logits(q, k, k_scale, weights, cu_seq_len_k_start, cu_seq_len_k_end, clean=clean_logits)


def get_paged_mqa_logits_metadata(context_lens: torch.Tensor, block_kv: int, num_sms: int) -> torch.Tensor:
    """A placeholder schedule for fp8_paged_mqa_logits, which ignores it: int32 zeros (num_sms + 1, 2) on the device of context_lens."""
    check_tensor(f"{WHERE}.get_paged_mqa_logits_metadata", "context_lens", context_lens)
    for name, value in (("block_kv", block_kv), ("num_sms", num_sms)):
        check_whole_number(f"{WHERE}.get_paged_mqa_logits_metadata", name, value)
    return torch.zeros((num_sms + 1, 2), dtype=torch.int32, device=context_lens.device)


def fp8_paged_mqa_logits(
    q: torch.Tensor,
    fused_kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule_meta: Any,
    max_context_len: int,
    clean_logits: bool = False,
) -> torch.Tensor:
    """Logits (B * N, max_context_len) of q (B, N, heads, D) and a cache (blocks, block_size, 1, D + 4): hipkittens.mqa_logits_paged.

    context_lens is int32 (B,), or (B, N) for each token. schedule_meta is ignored: work is divided by the shapes alone.
    """
    return mqa_logits_paged(
        q, fused_kv_cache, weights, context_lens, block_table, max_context_len, clean=clean_logits
    )
