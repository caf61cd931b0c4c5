# SPDX-License-Identifier: MIT
"""FlashMLA's names over hipkittens.attention_mla: `from hipkittens.integrations import flash_mla` in place of `import flash_mla`.

    metadata, num_splits = flash_mla.get_mla_metadata(cache_seqlens, s_q * h_q, 1)
    out, lse = flash_mla.flash_mla_with_kvcache(
        q, kv_cache, block_table, cache_seqlens, 512, metadata, num_splits, softmax_scale=scale, causal=True
    )

Argument orders are those of FlashMLA of April 2026. A cache has pages of any size, not of 64 alone, and any number of heads
works. What no kernel has is refused by name with NotImplementedError: attention to a list of keys (indices and what goes with it),
a second cache, and caches of 656 bytes a key.
"""

from __future__ import annotations

from typing import Any

import torch

from ..latent_attention import attention_mla

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
    """
    sparse = {
        "indices": indices,
        "extra_k_cache": extra_k_cache,
        "extra_indices_in_kvcache": extra_indices_in_kvcache,
        "topk_length": topk_length,
        "extra_topk_length": extra_topk_length,
    }
    for name, value in sparse.items():
        if value is not None:
            raise NotImplementedError(
                f"{WHERE}: {name} is given, which has no kernel; pass None, with a block_table of all keys"
            )
    if is_fp8_kvcache:
        raise NotImplementedError(
            f"{WHERE}: is_fp8_kvcache is {is_fp8_kvcache!r}; rows of 656 bytes with a scale for each 128 features have no kernel; "
            "hipkittens.attention_mla takes caches of 576 8-bit floats a key with kv_scale"
        )
    for name, value in (("block_table", block_table), ("cache_seqlens", cache_seqlens)):
        if value is None:
            raise TypeError(
                f"{WHERE}: {name} is None; it goes with indices, which have no kernel; pass a tensor"
            )
    if not isinstance(q, torch.Tensor) or q.dim() != 4:
        shape = tuple(q.shape) if isinstance(q, torch.Tensor) else type(q).__name__
        raise ValueError(f"{WHERE}: q has shape {shape}; it must be (sequences, tokens, heads, 576)")
    sequences, tokens, heads, features = q.shape
    out, lse = attention_mla(
        q.reshape(sequences * tokens, heads, features),
        k_cache,
        block_table,
        cache_seqlens,
        None,
        tokens,
        scale=features**-0.5 if softmax_scale is None else softmax_scale,
        head_dim_v=head_dim_v,
        causal=causal,
        sinks=attn_sink,
        return_lse=True,
    )
    lse = lse.reshape(heads, sequences, tokens).transpose(0, 1)
    lse = lse.masked_fill(lse == float("-inf"), float("inf"))
    return out.reshape(sequences, tokens, heads, head_dim_v), lse
