# SPDX-License-Identifier: MIT
"""Attention to the paged caches of Transformers' continuous batching (`generate_batch`), as passed by Transformers 4.57."""

from __future__ import annotations

from typing import Any

import torch

from ..attention import attention_varlen
from ..cache import cache_write
from ..paged_attention import HEAD_SIZES, attention_paged

# What Transformers passes to a layer of continuous batching in addition to the cache.
PLACES = ("read_index", "write_index")
LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_seqlen_q", "max_seqlen_k")


def attend(
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: Any,
    places: dict[str, Any],
    lengths: dict[str, Any],
    sliding_window: int | None,
    **settings: Any,
) -> torch.Tensor:
    """Returns (1, T, H, D_v) for query (T, H, D), key (T, H_k, D) and value (T, H_k, D_v), the packed new tokens of all requests, which are
    written to the cache.

    cache           a PagedAttentionCache
    places          by the names of PLACES: int32 positions in its cache for each group of layers
    lengths         by the names of LENGTHS; those of keys by the kind of layer, if there are two
    sliding_window  as a layer has it; None: no window
    settings        scale, softcap and sinks

    Layers without a window, with heads of 64, 128 or 256 features, read the cache in place: its positions are pages of one key, and
    read_index is a list of such pages. The cache of a window is a ring in which new keys replace the oldest, so for it, and for other head
    sizes, keys are gathered first, by the cache itself.
    """
    kind = "full_attention" if sliding_window is None else "sliding_attention"
    starts_q = lengths["cu_seq_lens_q"].to(torch.int32)
    starts_k, longest_k = (
        each[kind] if isinstance(each, dict) else each
        for each in (lengths["cu_seq_lens_k"], lengths["max_seqlen_k"])
    )
    starts_k = starts_k.to(torch.int32)
    longest_q = int(lengths["max_seqlen_q"])
    size = query.shape[2]
    if sliding_window is None and size in HEAD_SIZES and value.shape[2] == size:
        group, number = cache.layer_index_to_group_indices[layer]
        keys, values = (each[number].unsqueeze(1) for each in (cache.key_cache, cache.value_cache))
        cache_write(key, value, keys, values, places["write_index"][group].to(torch.int32))
        out = attention_paged(
            query, keys, values, places["read_index"][group].to(torch.int32), starts_k.diff(), starts_q, longest_q,
            table_starts=starts_k[:-1], **settings,
        )  # fmt: skip
        return out.unsqueeze(0)
    keys, values = cache.update(
        *(each.transpose(0, 1).unsqueeze(0) for each in (key, value)), layer, **places
    )
    reach = -1 if sliding_window is None else sliding_window - 1
    out = attention_varlen(
        query, keys, values, starts_q, starts_k, longest_q, int(longest_k), causal=True, window_size=(reach, -1), **settings
    )  # fmt: skip
    return out.unsqueeze(0)
