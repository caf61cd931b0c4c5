# SPDX-License-Identifier: MIT
"""flash_attn_with_kvcache and flash_attn_varlen_func where each sequence has a length of its own, or pages: hipkittens.attention_paged."""

from __future__ import annotations

import torch

from ..cache import cache_write
from ..paged_attention import attention_paged
from ..rotary import rotary


def attention_with_cache(
    where: str,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    rotary_cos: torch.Tensor | None,
    rotary_sin: torch.Tensor | None,
    cache_seqlens: int | torch.Tensor | None,
    cache_batch_idx: torch.Tensor | None,
    block_table: torch.Tensor | None,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    rotary_interleaved: bool,
    alibi_slopes: torch.Tensor | None,
    num_splits: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out (B, N, H, D) and LSE (B, H, N). A cache without pages has one page for each sequence."""
    if not isinstance(q, torch.Tensor) or q.dim() != 4:
        found = tuple(q.shape) if isinstance(q, torch.Tensor) else type(q).__name__
        raise ValueError(f"{where}: q is {found}; it must be (batch, tokens, heads, features)")
    batch, tokens, heads, size = q.shape
    if block_table is not None and cache_batch_idx is not None:
        raise ValueError(
            f"{where}: block_table and cache_batch_idx are given; a table names pages itself, pass None for one"
        )
    if block_table is None:
        rows = torch.arange(batch, device=q.device) if cache_batch_idx is None else cache_batch_idx
        if rows.shape != (batch,):
            raise ValueError(f"{where}: cache_batch_idx has shape {tuple(rows.shape)}; it must be ({batch},)")
        block_table = rows.to(torch.int32).unsqueeze(1)
    if block_table.dim() != 2 or block_table.shape[0] != batch:
        raise ValueError(
            f"{where}: block_table has shape {tuple(block_table.shape)}; it must be ({batch}, pages of a sequence)"
        )
    page = k_cache.shape[1]
    if cache_seqlens is None:
        cache_seqlens = block_table.shape[1] * page
    if not isinstance(cache_seqlens, torch.Tensor):
        cache_seqlens = torch.full((batch,), int(cache_seqlens), dtype=torch.int32, device=q.device)
    if cache_seqlens.shape != (batch,) or cache_seqlens.dtype != torch.int32:
        raise ValueError(
            f"{where}: cache_seqlens is {cache_seqlens.dtype} of shape {tuple(cache_seqlens.shape)}; it must be torch.int32 "
            f"({batch},)"
        )
    lengths = cache_seqlens
    if k is not None:
        places = cache_seqlens[:, None] + torch.arange(k.shape[1], dtype=torch.int32, device=q.device)
        lengths = cache_seqlens + k.shape[1]
        if rotary_cos is not None:
            k = rotary(k, rotary_cos, rotary_sin, interleaved=rotary_interleaved, positions=places)
            each = causal or tuple(window_size) != (-1, -1)
            steps = torch.arange(tokens, dtype=torch.int32, device=q.device) * each
            q = rotary(
                q,
                rotary_cos,
                rotary_sin,
                interleaved=rotary_interleaved,
                positions=cache_seqlens[:, None] + steps,
            )
        if q.device.type == "cpu" and lengths.numel() and int(lengths.max()) > block_table.shape[1] * page:
            raise ValueError(
                f"{where}: cache_seqlens is up to {int(cache_seqlens.max())} and {k.shape[1]} keys are new; the caches hold "
                f"{block_table.shape[1] * page} of a sequence"
            )
        pages = block_table.gather(1, (places // page).long())
        slots = pages * page + places % page
        cache_write(k.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, slots.flatten())
    out, lse = attention_paged(
        q.flatten(0, 1),
        k_cache,
        v_cache,
        block_table,
        lengths,
        None,
        tokens,
        causal=causal,
        scale=softmax_scale,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        num_splits=num_splits,
        return_lse=True,
    )
    return out.view(batch, tokens, heads, size), lse.view(heads, batch, tokens).transpose(0, 1)


def attention_of_pages(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    block_table: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out (T, H, D) and LSE (H, T); k and v are caches, of which cu_seqlens_k says how many keys each sequence has."""
    lengths = cu_seqlens_k.diff()
    with torch.no_grad():
        return attention_paged(
            q,
            k,
            v,
            block_table,
            lengths,
            cu_seqlens_q,
            max_seqlen_q,
            causal=causal,
            scale=softmax_scale,
            window_size=window_size,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            return_lse=True,
        )
