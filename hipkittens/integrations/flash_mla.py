# SPDX-License-Identifier: MIT
"""FlashMLA's interface for hipkittens.attention_mla: `from hipkittens.integrations import flash_mla` instead of `import flash_mla`.

    metadata, num_splits = flash_mla.get_mla_metadata(cache_seqlens, s_q * h_q, 1)
    out, lse = flash_mla.flash_mla_with_kvcache(
        q, kv_cache, block_table, cache_seqlens, 512, metadata, num_splits, softmax_scale=scale, causal=True
    )

    out, _, lse = flash_mla.flash_mla_sparse_fwd(q, kv, indices, scale)

Argument orders are those of FlashMLA of April 2026. Pages may have any size, not only 64, and the number of heads is arbitrary. Lists of
keys (indices) use hipkittens.attention_mla_sparse. 8-bit caches with scales in their rows (is_fp8_kvcache) are read directly if a key has
656 bytes. Rows of 512 features, and a second cache, have no dedicated kernel: PyTorch operations first copy the listed keys to 16 bits, and
a warning is issued once.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from .._log import once
from ..latent_attention import LATENT, ROTARY, attention_mla
from ..sparse_latent_attention import attention_mla_sparse
from ._flash_mla_rows import Lists, check_bytes, rows_of

WHERE = "hipkittens.integrations.flash_mla"


class SchedulerMetadata:
    """What get_mla_metadata returns instead of a schedule: attention_mla divides its work by the shapes alone."""


def get_mla_metadata(*_arguments: Any, **_options: Any) -> tuple[SchedulerMetadata, None]:
    """(metadata, num_splits) for flash_mla_with_kvcache, which ignores both. Accepts any arguments, since FlashMLA's versions differ in
    them.
    """
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
    """MLA of q (B, tokens, heads, 576) to a cache (blocks, block_size, key heads, 576); returns (out, lse).

    out is (B, tokens, heads, 512) in q's dtype, lse float32 (B, heads, tokens), +inf for a token that sees no key, whose out is 0.

    block_table is int32 (B, blocks per sequence), cache_seqlens int32 (B,). softmax_scale defaults to FlashMLA's 1 / sqrt(features of q),
    which is not DeepSeek's. attn_sink (heads,) is `sinks` of attention_mla. tile_scheduler_metadata and num_splits are ignored. With
    several key heads there is one launch for each.

    With indices int32 (B, tokens, k), block * block_size + position of each token's keys, and topk_length int32 (B,) or None, it is as
    attention_mla_sparse: block_table and cache_seqlens are None, causal is False, and the cache has one key head. extra_k_cache,
    extra_indices_in_kvcache and extra_topk_length are a second cache with its own lists, whose keys are added to those of the first. q may
    have 512 features, all of which are also the value.

    is_fp8_kvcache: caches of e4m3fn values, on both targets, with scales in their rows: 656 bytes per key for 576 features; only with
    indices, 584 for 512.
    """
    if not isinstance(q, torch.Tensor) or q.dim() != 4:
        shape = tuple(q.shape) if isinstance(q, torch.Tensor) else type(q).__name__
        raise ValueError(f"{WHERE}: q has shape {shape}; it must be (sequences, tokens, heads, 576)")
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    if indices is None:
        given = {
            "extra_k_cache": extra_k_cache,
            "extra_indices_in_kvcache": extra_indices_in_kvcache,
            "topk_length": topk_length,
            "extra_topk_length": extra_topk_length,
        }
        for name, value in given.items():
            if value is not None:
                raise TypeError(f"{WHERE}: {name} is given and indices is None; it goes with indices")
        if block_table is None or cache_seqlens is None:
            name = "block_table" if block_table is None else "cache_seqlens"
            raise TypeError(
                f"{WHERE}: {name} is None and so is indices; pass block_table and cache_seqlens, or indices"
            )
        if is_fp8_kvcache:
            check_bytes(WHERE, "k_cache", k_cache, q, (LATENT + ROTARY,))
        return _dense(q, k_cache, block_table, cache_seqlens, head_dim_v, scale, causal, attn_sink)
    _check_sparse(q, block_table, cache_seqlens, causal, indices, topk_length, "")
    lists = [Lists.of(k_cache, indices, topk_length)]
    if extra_k_cache is not None:
        _check_sparse(q, None, None, False, extra_indices_in_kvcache, extra_topk_length, "extra_")
        lists.append(Lists.of(extra_k_cache, extra_indices_in_kvcache, extra_topk_length))
    elif extra_indices_in_kvcache is not None or extra_topk_length is not None:
        raise TypeError(
            f"{WHERE}: extra_indices_in_kvcache or extra_topk_length is given without extra_k_cache"
        )
    rows = q.flatten(0, 1)
    if is_fp8_kvcache:
        for name, each in zip(("k_cache", "extra_k_cache"), lists, strict=False):
            check_bytes(WHERE, name, each.cache, q)
    if len(lists) > 1 or q.shape[3] == LATENT:
        once(
            logging.WARNING,
            f"{WHERE}: no kernel reads two caches at once, or rows of {LATENT} features: the listed keys are copied in 16 bits first",
        )
        cache, places = rows_of(lists, rows, bool(is_fp8_kvcache))
        counted = None
        rows = torch.nn.functional.pad(rows, (0, LATENT + ROTARY - rows.shape[2]))
    else:
        cache, places = k_cache, indices.flatten(0, 1)
        counted = None if topk_length is None else topk_length.repeat_interleave(q.shape[1])
    out, lse = attention_mla_sparse(
        rows,
        cache,
        places,
        scale=scale,
        topk_length=counted,
        head_dim_v=head_dim_v,
        sinks=attn_sink,
        return_lse=True,
    )
    return _in_shapes_of_flash_mla(out, lse, q.shape[0])


def _dense(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int,
    scale: float,
    causal: bool,
    attn_sink: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    key_heads = k_cache.shape[2] if k_cache.dim() == 4 else 1
    if key_heads == 0 or q.shape[2] % key_heads:
        raise ValueError(
            f"{WHERE}: q has {q.shape[2]} heads and k_cache {key_heads}; the first must be a multiple of the second"
        )
    group = q.shape[2] // key_heads
    found = [
        attention_mla(
            q.flatten(0, 1)[:, head * group : (head + 1) * group],
            k_cache[:, :, head : head + 1] if key_heads > 1 else k_cache,
            block_table,
            cache_seqlens,
            None,
            q.shape[1],
            scale=scale,
            head_dim_v=head_dim_v,
            causal=causal,
            sinks=None if attn_sink is None else attn_sink[head * group : (head + 1) * group],
            return_lse=True,
        )
        for head in range(key_heads)
    ]
    out, lse = (torch.cat(each, axis) for each, axis in zip(zip(*found, strict=True), (1, 0), strict=True))
    return _in_shapes_of_flash_mla(out, lse, q.shape[0])


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, None, torch.Tensor]:
    """Sparse MLA of q (tokens, heads, 576) to kv (keys, 1, 576) by indices int32 (tokens, 1, k); returns (out, None, lse).

    As hipkittens.attention_mla_sparse: out (tokens, heads, 512), lse float32 (tokens, heads), +inf for a token without keys. The second
    result, in FlashMLA the largest score of each row, is None: no kernel writes it.
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
    indices: torch.Tensor | None,
    topk_length: torch.Tensor | None,
    prefix: str,
) -> None:
    """prefix: of the argument names of a second cache."""
    for name, value in (("block_table", block_table), ("cache_seqlens", cache_seqlens)):
        if value is not None:
            raise ValueError(
                f"{WHERE}: {name} is given beside indices, which say where keys are in the cache; pass None"
            )
    if causal:
        raise ValueError(
            f"{WHERE}: causal is {causal!r} beside indices, which say what a token sees; pass False"
        )
    lists = "extra_indices_in_kvcache" if prefix else "indices"
    if not isinstance(indices, torch.Tensor) or indices.dim() != 3 or indices.shape[:2] != q.shape[:2]:
        shape = tuple(indices.shape) if isinstance(indices, torch.Tensor) else type(indices).__name__
        raise ValueError(
            f"{WHERE}: {lists} has shape {shape}; it must be ({q.shape[0]}, {q.shape[1]}, keys of a token), as q {tuple(q.shape)}"
        )
    if topk_length is not None and (
        not isinstance(topk_length, torch.Tensor) or topk_length.shape != q.shape[:1]
    ):
        shape = (
            tuple(topk_length.shape) if isinstance(topk_length, torch.Tensor) else type(topk_length).__name__
        )
        raise ValueError(f"{WHERE}: {prefix}topk_length has shape {shape}; it must be ({q.shape[0]},)")


def _infinite_where_empty(lse: torch.Tensor) -> torch.Tensor:
    return lse.masked_fill(lse == float("-inf"), float("inf"))


def _in_shapes_of_flash_mla(
    out: torch.Tensor, lse: torch.Tensor, sequences: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of packed tokens in FlashMLA's shapes."""
    heads, tokens = lse.shape
    each = tokens // sequences if sequences else 0
    lse = lse.reshape(heads, sequences, each).transpose(0, 1)
    return out.reshape(sequences, each, heads, out.shape[2]), _infinite_where_empty(lse)
