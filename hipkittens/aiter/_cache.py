# SPDX-License-Identifier: MIT
"""Writes into paged caches by AITER's names. Negative slots are written nowhere.

kv_cache_dtype "auto": the cache has the keys' dtype, and scales do not count. "fp8" or "fp8_e4m3": codes of the target's 8-bit floats
of x * (1 / scale), clamped; without a scale it is 1.
"""

from __future__ import annotations

import torch

from .. import cache_write, mla_cache_write
from ._results import refuse


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    asm_layout: bool = False,
) -> None:
    """Into caches [blocks, heads, features / x, block_size, x] and [blocks, heads, features, block_size], or with asm_layout
    [blocks, heads, block_size / x, features, x]."""
    _write("reshape_and_cache", key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale,
           "asm" if asm_layout else "paged")  # fmt: skip


def reshape_and_cache_flash(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> None:
    """Into caches [blocks, block_size, heads, features]."""
    _write("reshape_and_cache_flash", key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale,
           "nhd")  # fmt: skip


def concat_and_cache_mla(
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    scale: torch.Tensor | None,
) -> None:
    """Latents and rotary keys beside each other into a cache [blocks, block_size, latent + rotary], of any widths."""
    name = "concat_and_cache_mla"
    scale = _counted(name, kv_cache_dtype, "kv_cache", kv_cache, scale)
    mla_cache_write(kv_c, k_pe, kv_cache, slot_mapping, scale=scale)


def _write(name, key, value, key_cache, value_cache, slots, kind, k_scale, v_scale, layout) -> None:
    k_scale = _counted(name, kind, "key_cache", key_cache, k_scale)
    v_scale = _counted(name, kind, "value_cache", value_cache, v_scale)
    cache_write(key, value, key_cache, value_cache, slots, layout=layout, k_scale=k_scale, v_scale=v_scale)


def _counted(name, kind, cache_name, cache, scale):
    if kind not in ("auto", "fp8", "fp8_e4m3"):
        refuse(name, "kv_cache_dtype", repr(kind), "allowed: 'auto', 'fp8', 'fp8_e4m3'")
    if (cache.dtype.itemsize == 1) != (kind != "auto"):
        raise TypeError(
            f"hipkittens.aiter.{name}: kv_cache_dtype is {kind!r} and {cache_name} {cache.dtype}; 'auto' is of caches of 16 bits, "
            "'fp8' of those of 8"
        )
    return None if kind == "auto" else scale
