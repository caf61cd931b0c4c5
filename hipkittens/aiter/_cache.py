# SPDX-License-Identifier: MIT
"""Writes to paged caches by AITER's names. Tokens with a negative slot are not written.

kv_cache_dtype "auto": the cache has the keys' dtype, and scales are not used. "fp8" or "fp8_e4m3": x * (1 / scale) in the target's 8-bit
floats, clamped; without a scale it is 1. "int8": likewise in integers, rounded to nearest even.
"""

from __future__ import annotations

import torch

from .. import cache_write, indexer_cache_write, mla_cache_write
from ._results import check_place, put_codes, refuse


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
    """Write to caches [blocks, heads, features / x, block_size, x] and [blocks, heads, features, block_size], or with asm_layout
    [blocks, heads, block_size / x, features, x].
    """
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
    """Write to caches [blocks, block_size, heads, features]."""
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
    """Write latents and rotary keys, concatenated, to a cache [blocks, block_size, latent + rotary], of any widths."""
    name = "concat_and_cache_mla"
    scale = counted_scale(name, kv_cache_dtype, "kv_cache", kv_cache, scale)
    mla_cache_write(kv_c, k_pe, kv_cache, slot_mapping, scale=scale)


def reshape_and_cache_with_pertoken_quant(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    k_dequant_scales: torch.Tensor,
    v_dequant_scales: torch.Tensor,
    slot_mapping: torch.Tensor,
    asm_layout: bool,
) -> None:
    """Write to caches of 8-bit floats or int8, as in reshape_and_cache, with a scale for each token and head: in scales [heads, slots], or
    with asm_layout [blocks, heads, block_size]. Heads of zeros have scale 1. Integers are rounded to nearest even.
    """
    name = "reshape_and_cache_with_pertoken_quant"
    names = ("k_dequant_scales", "v_dequant_scales")
    scales = scales_of_tokens(name, names, (k_dequant_scales, v_dequant_scales), key_cache, asm_layout)
    cache_write(key, value, key_cache, value_cache, slot_mapping, layout="asm" if asm_layout else "paged",
                key_scales=scales[0], value_scales=scales[1])  # fmt: skip


def reshape_and_cache_with_block_quant(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    k_dequant_scales: torch.Tensor,
    v_dequant_scales: torch.Tensor,
    slot_mapping: torch.Tensor,
    asm_layout: bool,
) -> None:
    """Write key, value [batch, tokens, heads, features] to caches of 8-bit floats or int8, as in reshape_and_cache, with a scale for each
    block and head: in scales [heads, blocks], or with asm_layout [blocks, heads]. A scale grows if necessary, and the previous contents
    of the block are rescaled: `hipkittens.cache_write` with scales of groups documents the formulas.
    """
    size = key_cache.shape[3]
    _write_of_blocks(
        "reshape_and_cache_with_block_quant", key, value, key_cache, value_cache, k_dequant_scales, v_dequant_scales, slot_mapping,
        asm_layout, size,
    )  # fmt: skip


def reshape_and_cache_with_block_quant_for_asm_pa(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    k_dequant_scales: torch.Tensor,
    v_dequant_scales: torch.Tensor,
    slot_mapping: torch.Tensor,
    asm_layout: bool,
    ori_block_size: int = 128,
) -> None:
    """reshape_and_cache_with_block_quant with a scale for ori_block_size slots, 128 or 256: several consecutive blocks."""
    name = "reshape_and_cache_with_block_quant_for_asm_pa"
    if ori_block_size not in (128, 256):
        raise ValueError(f"hipkittens.aiter.{name}: ori_block_size is {ori_block_size!r}; allowed: 128, 256")
    _write_of_blocks(name, key, value, key_cache, value_cache, k_dequant_scales, v_dequant_scales, slot_mapping, asm_layout,
                     ori_block_size)  # fmt: skip


def indexer_k_quant_and_cache(
    k: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    quant_block_size: int,
    scale_fmt: str,
) -> None:
    """`hipkittens.indexer_cache_write`: k [tokens, features] into kv_cache [blocks, block_size, features + 4 * features /
    quant_block_size]. With scale_fmt "ue8m0" scales are powers of two, with "" and "fp32" they are not.
    """
    powers = has_powers_of_two("indexer_k_quant_and_cache", scale_fmt)
    indexer_cache_write(k, kv_cache, slot_mapping, group=quant_block_size, powers_of_two=powers)


def cp_gather_indexer_k_quant_cache(
    kv_cache: torch.Tensor,
    dst_k: torch.Tensor,
    dst_scale: torch.Tensor,
    block_table: torch.Tensor,
    cu_seq_lens: torch.Tensor,
) -> None:
    """Gather the quantized keys and the scales of packed sequences from the cache of indexer_k_quant_and_cache: dst_k [tokens, features]
    and dst_scale [tokens, 4 * groups] bytes, or as many float32. Tokens past the last sequence are unchanged. Uses PyTorch operations,
    no dedicated kernel.
    """
    name = "cp_gather_indexer_k_quant_cache"
    tokens, features = dst_k.shape
    blocks, size, row = kv_cache.shape
    bytes_of_scales = dst_scale.view(torch.uint8)
    check_place(name, "dst_scale", bytes_of_scales, tokens, row - features)
    flat = kv_cache.view(torch.uint8).reshape(blocks, size * row)
    token = torch.arange(tokens, device=dst_k.device)
    sequence = torch.searchsorted(cu_seq_lens.long(), token, right=True) - 1
    there = sequence < block_table.shape[0]
    sequence = sequence.clamp(max=block_table.shape[0] - 1)
    place = token - cu_seq_lens.long()[sequence]
    column = (place // size).clamp(max=block_table.shape[1] - 1)
    block, place = block_table.long()[sequence, column], place % size
    found = flat[:, : size * features].unflatten(1, (size, features))[block, place]
    scales = flat[:, size * features :].unflatten(1, (size, row - features))[block, place]
    old = dst_k.view(torch.uint8)
    put_codes(name, "dst_k", dst_k, torch.where(there[:, None], found, old))
    bytes_of_scales.copy_(torch.where(there[:, None], scales, bytes_of_scales))


def scales_of_tokens(name, names, given, key_cache, asm_layout) -> list[torch.Tensor]:
    """[heads, slots], or with asm_layout [blocks, heads, block_size], as (blocks, block_size, heads)."""
    blocks, heads, _, size, _ = key_cache.shape
    scales = []
    for scale_name, each in zip(names, given, strict=True):
        if each is None:
            raise ValueError(
                f"hipkittens.aiter.{name}: {scale_name} is None; a scale of each token's head is written to it"
            )
        check_place(
            name, scale_name, each, *((blocks, heads, size) if asm_layout else (heads, blocks * size))
        )
        scales.append(
            each.transpose(1, 2) if asm_layout else each.unflatten(1, (blocks, size)).permute(1, 2, 0)
        )
    return scales


def _write_of_blocks(
    name, key, value, key_cache, value_cache, k_scales, v_scales, slots, asm_layout, size
) -> None:
    where, (blocks, heads, _, block_size, _) = f"hipkittens.aiter.{name}", key_cache.shape
    for rows_name, rows in (("key", key), ("value", value)):
        if rows.dim() != 4:
            raise ValueError(
                f"{where}: {rows_name} has shape {tuple(rows.shape)}; it must be (batch, tokens, heads, features)"
            )
    if blocks * block_size % size:
        raise ValueError(
            f"{where}: {blocks} blocks of {block_size} slots are no whole number of {size} slots, which share a scale"
        )
    groups = blocks * block_size // size
    for scale_name, given in (("k_dequant_scales", k_scales), ("v_dequant_scales", v_scales)):
        check_place(name, scale_name, given, *((groups, heads) if asm_layout else (heads, groups)))
    scales = [each if asm_layout else each.t() for each in (k_scales, v_scales)]
    cache_write(key.flatten(0, 1), value.flatten(0, 1), key_cache, value_cache, slots, layout="asm" if asm_layout else "paged",
                key_scales=scales[0], value_scales=scales[1])  # fmt: skip


def _write(name, key, value, key_cache, value_cache, slots, kind, k_scale, v_scale, layout) -> None:
    k_scale = counted_scale(name, kind, "key_cache", key_cache, k_scale)
    v_scale = counted_scale(name, kind, "value_cache", value_cache, v_scale)
    cache_write(key, value, key_cache, value_cache, slots, layout=layout, k_scale=k_scale, v_scale=v_scale)


def has_powers_of_two(name: str, scale_fmt: str | None) -> bool:
    """Whether the scales of a cache with this scale_fmt are powers of two. ValueError for an unknown one."""
    if scale_fmt not in ("ue8m0", "", "fp32", None):
        raise ValueError(f"hipkittens.aiter.{name}: scale_fmt is {scale_fmt!r}; allowed: 'ue8m0', 'fp32', ''")
    return scale_fmt == "ue8m0"


def counted_scale(name, kind, cache_name, cache, scale):
    """`scale` if kv_cache_dtype `kind` uses one. Raises for an unknown kind, or one that is not the cache's."""
    if kind not in ("auto", "fp8", "fp8_e4m3", "int8"):
        refuse(name, "kv_cache_dtype", repr(kind), "allowed: 'auto', 'fp8', 'fp8_e4m3', 'int8'")
    held = "auto" if cache.dtype.itemsize > 1 else "int8" if cache.dtype == torch.int8 else "fp8"
    if held != kind.removesuffix("_e4m3"):
        raise TypeError(
            f"hipkittens.aiter.{name}: kv_cache_dtype is {kind!r} and {cache_name} {cache.dtype}; 'auto' is of caches of 16 bits, "
            "'fp8' of 8-bit floats or their bytes, 'int8' of int8"
        )
    return None if kind == "auto" else scale
