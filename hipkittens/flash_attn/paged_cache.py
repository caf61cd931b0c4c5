# SPDX-License-Identifier: MIT
"""flash_attn_with_kvcache and flash_attn_varlen_func with per-sequence lengths or pages, by hipkittens.attention_paged."""

from __future__ import annotations

import logging

import torch
from torch.nn.functional import pad

from .._log import once
from .._paged_sequences import rows_as_pages
from ..cache import cache_write
from ..paged_attention import HEAD_SIZES, attention_paged
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
    cache_leftpad: torch.Tensor | None,
    block_table: torch.Tensor | None,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    rotary_interleaved: bool,
    alibi_slopes: torch.Tensor | None,
    num_splits: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns out (B, N, H, D) and LSE (B, H, N). A cache without pages is treated as one page per sequence."""
    if not isinstance(q, torch.Tensor) or q.dim() != 4:
        found = tuple(q.shape) if isinstance(q, torch.Tensor) else type(q).__name__
        raise ValueError(f"{where}: q is {found}; it must be (batch, tokens, heads, features)")
    batch, tokens, heads, _ = q.shape
    _check_leftpad(where, cache_leftpad, block_table, batch)
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
    if cache_leftpad is not None:
        k_cache, v_cache, block_table = _behind_padding(where, k_cache, v_cache, block_table, cache_leftpad)
        lengths = (lengths - cache_leftpad).clamp(min=0)
    out, lse = _attend(
        where,
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
    )
    return out.unflatten(0, (batch, tokens)), lse.view(heads, batch, tokens).transpose(0, 1)


def attention_of_pages(
    where: str,
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
    """Returns out (T, H, D) and LSE (H, T); k and v are caches, and cu_seqlens_k gives the number of keys of each sequence."""
    lengths = cu_seqlens_k.diff()
    with torch.no_grad():
        return _attend(
            where,
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
        )


def _attend(
    where: str,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    max_seqlen_q: int,
    scale: float | None,
    **options,
) -> tuple[torch.Tensor, torch.Tensor]:
    """attention_paged with its LSE. For head sizes without a kernel, q and the pages in the table, which are copied for this, are padded
    with zeros.
    """
    size = q.shape[-1]
    whole = next((each for each in HEAD_SIZES if each >= size), size)
    if whole == size or k_cache.shape[-1] != size or v_cache.shape[-1] != size:
        return attention_paged(
            q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, scale=scale, return_lse=True, **options
        )  # fmt: skip
    once(
        logging.WARNING,
        f"{where}: heads of {size} features are filled up to {whole}, for which every call copies the pages of its caches; "
        f"caches of {', '.join(map(str, HEAD_SIZES))} features are not copied",
    )
    # Entries past a sequence's last page may be arbitrary.
    pages = block_table.clamp(0, max(k_cache.shape[0] - 1, 0)).flatten()
    table = torch.arange(pages.numel(), dtype=torch.int32, device=q.device).view(block_table.shape)
    q, k_cache, v_cache = (
        pad(each, (0, whole - size))
        for each in (q, k_cache.index_select(0, pages), v_cache.index_select(0, pages))
    )
    scale = size**-0.5 if scale is None else scale
    out, lse = attention_paged(
        q, k_cache, v_cache, table, lengths, cu_seqlens_q, max_seqlen_q, scale=scale, return_lse=True, **options
    )  # fmt: skip
    return out[..., :size], lse


def _check_leftpad(
    where: str, cache_leftpad: torch.Tensor | None, block_table: torch.Tensor | None, batch: int
) -> None:
    if cache_leftpad is None:
        return
    if block_table is not None:
        raise ValueError(
            f"{where}: block_table and cache_leftpad are given; sequences in pages begin at a page's first place, pass None for one"
        )
    if (
        not isinstance(cache_leftpad, torch.Tensor)
        or cache_leftpad.shape != (batch,)
        or cache_leftpad.dtype != torch.int32
    ):
        found = (
            f"{cache_leftpad.dtype} of shape {tuple(cache_leftpad.shape)}"
            if isinstance(cache_leftpad, torch.Tensor)
            else type(cache_leftpad).__name__
        )
        raise ValueError(f"{where}: cache_leftpad is {found}; it must be torch.int32 ({batch},)")


def _behind_padding(
    where: str,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: torch.Tensor,
    cache_leftpad: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Caches with pages of one key, and a table that begins after each sequence's padding."""
    room = k_cache.shape[1]
    places = torch.arange(room, dtype=torch.int32, device=rows.device) + cache_leftpad[:, None]
    keys = rows * room + places.clamp(max=room - 1)
    k_pages, table = rows_as_pages(where, "k_cache", k_cache, keys)
    v_pages, of_values = rows_as_pages(where, "v_cache", v_cache, keys)
    if k_cache.stride()[:2] != v_cache.stride()[:2] and table is not of_values:
        raise ValueError(
            f"{where}: k_cache has strides {tuple(k_cache.stride())} and v_cache {tuple(v_cache.stride())} with cache_leftpad; they "
            "must be equal: call .contiguous()"
        )
    return k_pages, v_pages, table
