# SPDX-License-Identifier: MIT
"""FlashMLA's names over hipkittens.attention_mla: `from hipkittens.integrations import flash_mla` in place of `import flash_mla`.

    metadata, num_splits = flash_mla.get_mla_metadata(cache_seqlens, s_q * h_q, 1)
    out, lse = flash_mla.flash_mla_with_kvcache(
        q, kv_cache, block_table, cache_seqlens, 512, metadata, num_splits, softmax_scale=scale, causal=True
    )

    out, _, lse = flash_mla.flash_mla_sparse_fwd(q, kv, indices, scale)

Argument orders are those of FlashMLA of April 2026. A cache has pages of any size, not of 64 alone, and any number of heads
works. Lists of keys (indices) are hipkittens.attention_mla_sparse, to caches of 16 bits. What no kernel has is refused by name with
NotImplementedError: a second cache, and caches of 656 bytes a key.
"""

from __future__ import annotations

from typing import Any

import torch

from ..latent_attention import attention_mla
from ..sparse_latent_attention import attention_mla_sparse

WHERE = "hipkittens.integrations.flash_mla"


class SchedulerMetadata:
    """What get_mla_metadata returns in place of a schedule: attention_mla divides its work by the shapes alone."""


def get_mla_metadata(*_arguments: Any, **_options: Any) -> tuple[SchedulerMetadata, None]:
    """(metadata, num_splits) for flash_mla_with_kvcache, which looks at neither. Any arguments: FlashMLA's versions differ in them."""
    return SchedulerMetadata(), None


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: Any,
    num_splits: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of q (B, tokens, heads, 576) and a cache (blocks, block_size, 1, 576): out (B, tokens, heads, 512) of q's dtype,
    lse float32 (B, heads, tokens), +inf for a token that sees no key, whose out is 0.

    block_table int32 (B, blocks of a sequence), cache_seqlens int32 (B,). softmax_scale defaults to 1 / sqrt(576), FlashMLA's, which
    is not DeepSeek's. attn_sink (heads,) as `sinks` of attention_mla. tile_scheduler_metadata and num_splits are not looked at.
    With indices int32 (B, tokens, k), block * block_size + place of each token's keys, and topk_length int32 (B,) or None, as in
    attention_mla_sparse: block_table and cache_seqlens are None, and causal is False.
    """
    refused = {
        "extra_k_cache": extra_k_cache,
        "extra_indices_in_kvcache": extra_indices_in_kvcache,
        "extra_topk_length": extra_topk_length,
    }
    for name, value in refused.items():
        if value is not None:
            raise NotImplementedError(
                f"{WHERE}: {name} is given, which has no kernel; pass None, with indices of one cache"
            )
    if is_fp8_kvcache:
        raise NotImplementedError(
            f"{WHERE}: is_fp8_kvcache is {is_fp8_kvcache!r}; rows of 656 bytes with a scale for each 128 features have no kernel; "
            "hipkittens.attention_mla takes caches of 576 8-bit floats a key with kv_scale"
        )
    if not isinstance(q, torch.Tensor) or q.dim() != 4:
        shape = tuple(q.shape) if isinstance(q, torch.Tensor) else type(q).__name__
        raise ValueError(f"{WHERE}: q has shape {shape}; it must be (sequences, tokens, heads, 576)")
    sequences, tokens, heads, features = q.shape
    scale = features**-0.5 if softmax_scale is None else softmax_scale
    if indices is not None:
        _check_sparse(q, block_table, cache_seqlens, causal, indices, topk_length)
        out, lse = attention_mla_sparse(
            q.reshape(sequences * tokens, heads, features),
            k_cache,
            indices.reshape(sequences * tokens, indices.shape[2]),
            scale=scale,
            topk_length=None if topk_length is None else topk_length.repeat_interleave(tokens),
            head_dim_v=head_dim_v,
            sinks=attn_sink,
            return_lse=True,
        )
        return _in_shapes_of_flash_mla(out, lse, sequences)
    if topk_length is not None:
        raise TypeError(
            f"{WHERE}: topk_length is given and indices is None; it counts the entries of indices"
        )
    if block_table is None or cache_seqlens is None:
        name = "block_table" if block_table is None else "cache_seqlens"
        raise TypeError(
            f"{WHERE}: {name} is None and so is indices; pass block_table and cache_seqlens, or indices"
        )
    out, lse = attention_mla(
        q.reshape(sequences * tokens, heads, features),
        k_cache,
        block_table,
        cache_seqlens,
        None,
        tokens,
        scale=scale,
        head_dim_v=head_dim_v,
        causal=causal,
        sinks=attn_sink,
        return_lse=True,
    )
    return _in_shapes_of_flash_mla(out, lse, sequences)


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, None, torch.Tensor]:
    """(out, None, lse) of q (tokens, heads, 576), kv (keys, 1, 576) and indices int32 (tokens, 1, k), as hipkittens.attention_mla_sparse:
    out (tokens, heads, 512), lse float32 (tokens, heads), +inf for a token without keys.

    In place of the second result, the largest score of each row, is None: no kernel writes it.
    """
    if not isinstance(indices, torch.Tensor) or indices.dim() != 3 or indices.shape[1] != 1:
        shape = tuple(indices.shape) if isinstance(indices, torch.Tensor) else type(indices).__name__
        raise ValueError(f"{WHERE}: indices has shape {shape}; it must be (tokens, 1, keys of a token)")
    out, lse = attention_mla_sparse(
        q,
        kv,
        indices.squeeze(1),
        scale=sm_scale,
        topk_length=topk_length,
        head_dim_v=d_v,
        sinks=attn_sink,
        return_lse=True,
    )
    return out, None, _infinite_where_empty(lse).T


def _check_sparse(
    q: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    causal: bool,
    indices: torch.Tensor,
    topk_length: torch.Tensor | None,
) -> None:
    for name, value in (("block_table", block_table), ("cache_seqlens", cache_seqlens)):
        if value is not None:
            raise ValueError(
                f"{WHERE}: {name} is given beside indices, which say where keys are in the cache; pass None"
            )
    if causal:
        raise ValueError(
            f"{WHERE}: causal is {causal!r} beside indices, which say what a token sees; pass False"
        )
    if not isinstance(indices, torch.Tensor) or indices.dim() != 3 or indices.shape[:2] != q.shape[:2]:
        shape = tuple(indices.shape) if isinstance(indices, torch.Tensor) else type(indices).__name__
        raise ValueError(
            f"{WHERE}: indices has shape {shape}; it must be ({q.shape[0]}, {q.shape[1]}, keys of a token), as q {tuple(q.shape)}"
        )
    if topk_length is not None and (
        not isinstance(topk_length, torch.Tensor) or topk_length.shape != q.shape[:1]
    ):
        shape = (
            tuple(topk_length.shape) if isinstance(topk_length, torch.Tensor) else type(topk_length).__name__
        )
        raise ValueError(f"{WHERE}: topk_length has shape {shape}; it must be ({q.shape[0]},)")


def _infinite_where_empty(lse: torch.Tensor) -> torch.Tensor:
    return lse.masked_fill(lse == float("-inf"), float("inf"))


def _in_shapes_of_flash_mla(
    out: torch.Tensor, lse: torch.Tensor, sequences: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of results of packed tokens."""
    heads, tokens = lse.shape
    each = tokens // sequences if sequences else 0
    lse = lse.reshape(heads, sequences, each).transpose(0, 1)
    return out.reshape(sequences, each, heads, out.shape[2]), _infinite_where_empty(lse)
