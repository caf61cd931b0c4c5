# SPDX-License-Identifier: MIT
"""Writes to paged caches: keys and values, latents of multi-head latent attention, and an indexer's keys."""

from __future__ import annotations

from typing import Any, Literal

import torch

from . import _backend
from ._arguments import (
    check_dtype_and_device,
    check_flag,
    check_gets_no_gradient,
    check_tensor,
    check_whole_number,
)
from ._call import call
from ._latent_rows import (
    as_heads_with_scales,
    check_scaled_rows,
    has_scaled_rows,
    rotary_features,
    scaled_rows_of,
)
from .quantization import dtype_of

DTYPES = (torch.bfloat16, torch.float16)

Layout = Literal["paged", "asm", "nhd", "hnd"]
# In the order of CacheLayout in csrc/torch/paged_cache.h.
LAYOUTS = ("paged", "asm", "nhd", "hnd")
GROUPS = (32, 64, 128)  # of features that share a scale
MOST_SCALED_FEATURES = 512  # most_scaled_features of csrc/kernels/cache/plan.h
INDEXER_FLOOR = 1e-4  # indexer_floor of csrc/torch/cache_scaled.cpp
MOST_SHARED_SLOTS = 1024  # most_shared_slots of csrc/kernels/cache/kinds.h
SHARED_FLOOR = 1e-6  # shared_floor of csrc/torch/cache_shared_scale.cpp


@_backend.interruptible
def cache_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    layout: Layout = "nhd",
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> None:
    """Write the keys and values of tokens into their slots of paged caches, in one launch.

    - `key`, `value`: (tokens, heads, features), bfloat16 or float16, any strides; value may have another number of features than key.
    - `key_cache`, `value_cache`: written in place; slot s is position s % block_size of block s // block_size. Shapes by `layout`, with x
      elements in 16 bytes (8 of bfloat16, 16 of 8-bit values):
      "nhd" (blocks, block_size, heads, features) for both (vLLM's reshape_and_cache_flash);
      "hnd" (blocks, heads, block_size, features) for both;
      "paged" (blocks, heads, features / x, block_size, x) and (blocks, heads, features, block_size) (vLLM's reshape_and_cache);
      "asm" as "paged", with value_cache (blocks, heads, block_size / x, features, x) (AITER's asm_layout).
      Their dtype is key's, or the target's float8 (e4m3fnuz on gfx942, e4m3fn on gfx950), torch.uint8 for its bytes, or torch.int8. Any
      strides, with 64-bit addresses; no two elements may share memory.
    - `slots`: int32 or int64, (tokens,). Tokens with a negative slot are not written. A slot past the last one raises RuntimeError for CPU
      tensors, and is ignored on a GPU. If two tokens have the same slot, either may be kept.
    - `k_scale`, `v_scale`: one float32 each, for caches of float8 or int8: float32(x) * (1 / scale) is clamped to the largest code (int8:
      -127 .. 127) and rounded to nearest even. None is 1. A NaN becomes the format's NaN, and 0 in int8.
    - `key_scales`, `value_scales`: both or none, for caches of float8 or int8; float32 tensors that are written as well.
      (blocks, block_size, heads), any strides, with up to 512 features per head: the scale is the largest magnitude of each head of a token
      over the largest code, 1 for zeros; codes are computed from float32(x) * (1 / scale), like `quantize` for rows.
      (groups, heads), any number of features: one scale for each head of the group s * groups // slots of slot s, up to 1024 slots, such
      as those of a block. If a group's first slot is written, the scale is the largest magnitude written to the group, at least 1e-6, over
      the largest code. Otherwise it is the larger of that and the previous scale; if it grows, values in the slots before the first
      written one become code * old / new, rounded. Fill the slots of a group from its first one on. NaN is ignored. If two tokens have the
      same slot, the later one is kept, and only that one counts.

    Not differentiable: raises ValueError where autograd would record the call. Raises TypeError or ValueError, before anything is launched,
    for arguments that no kernel supports.
    """
    where = "hipkittens.cache_write"
    if layout not in LAYOUTS:
        raise ValueError(f"{where}: layout is {layout!r}; allowed: {', '.join(LAYOUTS)}")
    _check_rows(where, "key", key, "key", key, (3,), "(tokens, heads, features)")
    _check_rows(where, "value", value, "key", key, (3,), "(tokens, heads, features)")
    if value.shape[:2] != key.shape[:2]:
        raise ValueError(
            f"{where}: key has shape {tuple(key.shape)} and value {tuple(value.shape)}; only their features may differ"
        )
    check_slots(where, slots, key.shape[0], "key", key)
    check_caches(where, key, value, key_cache, value_cache, layout, k_scale, v_scale)
    scaled = key_scales is not None or value_scales is not None
    if scaled:
        _check_scales(where, key, value, key_cache, layout, k_scale, v_scale, key_scales, value_scales)
    _backend.check_device(where, "key", key)
    if scaled:
        write = _write_scaled if key_scales.dim() == 3 else _write_shared_scale
        write(key, value, key_cache, value_cache, key_scales, value_scales, slots, layout)
        return
    if _backend.uses_torch():
        write_in_torch(_by_slot(key_cache, layout, False), key, slots, k_scale)
        write_in_torch(_by_slot(value_cache, layout, True), value, slots, v_scale, layout == "asm")
        return
    call(
        "cache_write",
        key,
        value,
        as_operand(key_cache),
        as_operand(value_cache),
        slots,
        k_scale,
        v_scale,
        LAYOUTS.index(layout),
    )
    mark_written(key_cache, value_cache)


@_backend.interruptible
def mla_cache_write(
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
) -> None:
    """Write latents and rotary keys into the slots of a cache for multi-head latent attention, in one launch.

    - `kv_c`, `k_pe`: (tokens, latent), and (tokens, rotary) or (tokens, 1, rotary): bfloat16 or float16. 512 and 64 in DeepSeek V3.
    - `kv_cache`: (blocks, block_size, latent + rotary), written in place; dtypes as in `cache_write`. For bfloat16 rows of 512 and 64
      features also (blocks, block_size, 656) of torch.uint8, torch.int8 or torch.float8_e4m3fn, in two launches: rows that contain their
      own scales, as `attention_mla` reads them. A scale is the largest magnitude of 128 features over 448, 1 for zeros; codes are computed
      from float32(x) * (1 / scale).
    - `slots`, `scale`: as in `cache_write`; one scale for both parts, and none for rows with their own scales.

    Not differentiable; errors as in `cache_write`.
    """
    where = "hipkittens.mla_cache_write"
    _check_rows(where, "kv_c", kv_c, "kv_c", kv_c, (2,), "(tokens, latent)")
    _check_rows(where, "k_pe", k_pe, "kv_c", kv_c, (2, 3), "(tokens, rotary) or (tokens, 1, rotary)")
    if k_pe.dim() == 3 and k_pe.shape[1] != 1:
        raise ValueError(f"{where}: k_pe has shape {tuple(k_pe.shape)}; it has one head, (tokens, 1, rotary)")
    k_pe = k_pe.squeeze(1) if k_pe.dim() == 3 else k_pe
    if k_pe.shape[0] != kv_c.shape[0]:
        raise ValueError(
            f"{where}: kv_c has shape {tuple(kv_c.shape)} and k_pe {tuple(k_pe.shape)}; both have the same tokens"
        )
    check_slots(where, slots, kv_c.shape[0], "kv_c", kv_c)
    features = kv_c.shape[1] + k_pe.shape[1]
    if isinstance(kv_cache, torch.Tensor) and has_scaled_rows(kv_cache) and features != kv_cache.shape[-1]:
        check_scaled_rows(where, kv_c, k_pe, kv_cache, scale)
        _check_slots_are_apart(where, "kv_cache", kv_cache)
        _check_slot_count(where, "kv_cache", *kv_cache.shape[:2])
        _backend.check_device(where, "kv_c", kv_c)
        if _backend.uses_torch():
            rows = scaled_rows_of(torch.cat((kv_c, k_pe), -1))
            write_in_torch(kv_cache.view(torch.int32), rows.view(torch.int32), slots, None)  # as they are
            return
        call("cache_write_scaled", *as_heads_with_scales(kv_c, kv_cache), slots, LAYOUTS.index("nhd"), True)
        half = k_pe.shape[1] // 2
        call("mla_cache_write", k_pe[:, :half], k_pe[:, half:], rotary_features(kv_cache), slots, None)
        mark_written(kv_cache)
        return
    check_latent_cache(where, "kv_c", kv_c, [(features,)], kv_cache, scale)
    _backend.check_device(where, "kv_c", kv_c)
    if _backend.uses_torch():
        rows = torch.cat((kv_c, k_pe), -1)
        write_in_torch(kv_cache, rows, slots, scale)
        return
    call("mla_cache_write", kv_c, k_pe, as_operand(kv_cache), slots, scale)
    mark_written(kv_cache)


@_backend.interruptible
def indexer_cache_write(
    k: torch.Tensor,
    kv_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    group: int = 128,
    powers_of_two: bool = False,
) -> None:
    """Quantize an indexer's keys to 8-bit floats and write them, with their scales, to the cache that `mqa_logits_paged` reads.

    One launch. The cache format is that of DeepGEMM, vLLM and AITER.

    - `k`: (tokens, features), bfloat16 or float16, any strides; a whole number of groups, at most 512 features.
    - `kv_cache`: (blocks, block_size, features + 4 * features / group), the target's float8 or torch.uint8, written in place. A block is
      contiguous and aligned to 4 bytes: the codes of its slots, then their float32 scales.
    - `slots`: as in `cache_write`.
    - `group`: 32, 64 or 128 features share a scale: their largest magnitude, at least 1e-4, over the largest code.
    - `powers_of_two`: round scales up to a power of two ("ue8m0").

    Codes are round(float32(k) * (1 / scale)). Not differentiable; errors as in `cache_write`.
    """
    where = "hipkittens.indexer_cache_write"
    _check_rows(where, "k", k, "k", k, (2,), "(tokens, features)")
    check_whole_number(where, "group", group)
    check_flag(where, "powers_of_two", powers_of_two)
    features = k.shape[1]
    if group not in GROUPS:
        raise ValueError(f"{where}: group is {group}; allowed: {', '.join(map(str, GROUPS))}")
    if features % group or features > MOST_SCALED_FEATURES:
        raise ValueError(
            f"{where}: k has {features} features; a multiple of group, {group}, up to {MOST_SCALED_FEATURES} is allowed"
        )
    check_slots(where, slots, k.shape[0], "k", k)
    row = features + 4 * (features // group)
    check_latent_cache(where, "k", k, [(row,)], kv_cache, None)
    if not is_quantized(kv_cache) or kv_cache.dtype == torch.int8:
        raise TypeError(
            f"{where}: kv_cache is {kv_cache.dtype}; allowed: {dtype_of('fp8', k.device)}, {torch.uint8}"
        )
    size = kv_cache.shape[1]
    apart = kv_cache.stride(2) != 1 or (size > 1 and kv_cache.stride(1) != row)
    # Under torch.compile the address of a view is unknown: the operator checks it again.
    begin = 0 if torch.compiler.is_compiling() else kv_cache.storage_offset()
    if apart or kv_cache.stride(0) % 4 or begin % 4:
        raise ValueError(
            f"{where}: kv_cache has strides {tuple(kv_cache.stride())} from {begin} on; blocks must be contiguous "
            "and begin on 4 bytes"
        )
    _backend.check_device(where, "k", k)
    if _backend.uses_torch():
        _write_indexer_in_torch(k, kv_cache, slots, group, powers_of_two)
        return
    call("indexer_cache_write", k, as_operand(kv_cache), slots, group, powers_of_two)
    mark_written(kv_cache)


def is_quantized(cache: torch.Tensor) -> bool:
    return cache.dtype.itemsize == 1


def as_operand(cache: torch.Tensor) -> torch.Tensor:
    """The cache as operators expect it: 8-bit floats as bytes, int8 as int8."""
    return cache.view(torch.uint8) if is_quantized(cache) and cache.dtype != torch.int8 else cache


def mark_written(*caches: torch.Tensor) -> None:
    """Tells autograd that the caches were written, which a custom mutating operator does not."""
    for cache in caches:
        torch.autograd.graph.increment_version(cache)


def shapes_of(
    layout: Layout, heads: int, key_features: int, value_features: int, itemsize: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Sizes of the caches of keys and of values; strings stand for any size."""
    x = 16 // itemsize
    if layout == "nhd":
        return ("blocks", "block_size", heads, key_features), ("blocks", "block_size", heads, value_features)
    if layout == "hnd":
        return ("blocks", heads, "block_size", key_features), ("blocks", heads, "block_size", value_features)
    keys = ("blocks", heads, key_features // x, "block_size", x)
    if layout == "paged":
        return keys, ("blocks", heads, value_features, "block_size")
    return keys, ("blocks", heads, f"block_size / {x}", value_features, x)


def check_caches(
    where: str,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    layout: Layout,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> None:
    """Raises for caches that rows (tokens, heads, features) cannot be written to."""
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        _check_cache(where, name, cache, "key", key)
    if key_cache.dtype != value_cache.dtype:
        raise TypeError(
            f"{where}: key_cache is {key_cache.dtype} and value_cache {value_cache.dtype}; both have one dtype"
        )
    x = 16 // key_cache.dtype.itemsize
    if layout in ("paged", "asm") and key.shape[-1] % x:
        raise ValueError(
            f"{where}: key has {key.shape[-1]} features; layout {layout!r} has {x} of {key_cache.dtype} in 16 bytes and needs "
            "a multiple of that; use 'nhd' or 'hnd'"
        )
    wanted = shapes_of(layout, key.shape[1], key.shape[-1], value.shape[-1], key_cache.dtype.itemsize)
    for name, cache, sizes in zip(
        ("key_cache", "value_cache"), (key_cache, value_cache), wanted, strict=True
    ):
        fits = cache.dim() == len(sizes) and all(
            isinstance(want, str) or size == want for size, want in zip(cache.shape, sizes, strict=True)
        )
        if not fits:
            text = ", ".join(map(str, sizes))
            raise ValueError(
                f"{where}: {name} has shape {tuple(cache.shape)}; with layout {layout!r} it must be ({text})"
            )
    slots = [
        _slot_counts(cache, sizes) for cache, sizes in zip((key_cache, value_cache), wanted, strict=True)
    ]
    if slots[0] != slots[1]:
        raise ValueError(
            f"{where}: key_cache has {slots[0][0]} blocks of {slots[0][1]} slots and value_cache {slots[1][0]} of "
            f"{slots[1][1]}; both have the same"
        )
    _check_slot_count(where, "key_cache", *slots[0])
    _check_scale(where, "k_scale", k_scale, "key_cache", key_cache)
    _check_scale(where, "v_scale", v_scale, "value_cache", value_cache)


def check_latent_cache(
    where: str,
    name: str,
    rows: torch.Tensor,
    of_slot: list[tuple[int, ...]],
    kv_cache: torch.Tensor,
    scale: torch.Tensor | None,
) -> None:
    """Raises for a cache that latents and rotary keys cannot be written to. of_slot: the allowed shapes of a slot."""
    _check_cache(where, "kv_cache", kv_cache, name, rows)
    if tuple(kv_cache.shape[2:]) not in of_slot:
        shapes = " or ".join(f"(blocks, block_size, {', '.join(map(str, sizes))})" for sizes in of_slot)
        raise ValueError(f"{where}: kv_cache has shape {tuple(kv_cache.shape)}; it must be {shapes}")
    _check_slot_count(where, "kv_cache", *kv_cache.shape[:2])
    _check_scale(where, "scale", scale, "kv_cache", kv_cache)


def _check_scales(where, key, value, key_cache, layout, k_scale, v_scale, key_scales, value_scales) -> None:
    given = {"key_scales": key_scales, "value_scales": value_scales}
    for name, scales in given.items():
        if scales is None:
            raise ValueError(f"{where}: {name} is None and the other scales are not; give both")
    if k_scale is not None or v_scale is not None:
        raise ValueError(
            f"{where}: scales are given and are to be written; pass k_scale and v_scale, or key_scales and value_scales"
        )
    if not is_quantized(key_cache):
        raise ValueError(
            f"{where}: key_scales is given and key_cache is {key_cache.dtype}; only caches of 8-bit codes have scales"
        )
    wanted = shapes_of(layout, key.shape[1], key.shape[-1], value.shape[-1], key_cache.dtype.itemsize)
    blocks, block_size = _slot_counts(key_cache, wanted[0])
    heads, shared = key.shape[1], isinstance(key_scales, torch.Tensor) and key_scales.dim() == 2
    for name, scales in given.items():
        check_tensor(where, name, scales)
        check_dtype_and_device(where, name, scales, (torch.float32,), "key", key)
        sizes = (key_scales.shape[0], heads) if shared else (blocks, block_size, heads)
        if tuple(scales.shape) != sizes:
            text = f"{sizes}, as key_scales" if shared and scales is value_scales else f"{sizes}"
            also = "" if shared else f", or (groups, {heads})"
            raise ValueError(f"{where}: {name} has shape {tuple(scales.shape)}; it must be {text}{also}")
    if shared:
        _check_groups(where, blocks * block_size, key_scales)
        return
    for name, rows in (("key", key), ("value", value)):
        if rows.shape[-1] > MOST_SCALED_FEATURES:
            raise ValueError(
                f"{where}: {name} has {rows.shape[-1]} features; with scales that are written, 1 to {MOST_SCALED_FEATURES} are allowed"
            )


def _check_groups(where, slots, key_scales) -> None:
    groups = key_scales.shape[0]
    if groups == 0 or slots % groups or slots // groups > MOST_SHARED_SLOTS:
        raise ValueError(
            f"{where}: key_scales has {groups} groups for {slots} slots; each has the same number of slots, 1 to {MOST_SHARED_SLOTS}"
        )


def _write_shared_scale(key, value, key_cache, value_cache, key_scales, value_scales, slots, layout) -> None:
    if _backend.uses_torch():
        for rows, cache, scales, values in (
            (key, key_cache, key_scales, False),
            (value, value_cache, value_scales, True),
        ):
            by_slot = _by_slot(as_operand(cache), layout, values)
            flat = by_slot.reshape(-1, *rows.shape[1:])
            codes = _codes_in(cache)
            of_slots = _share_scales(rows, flat.view(codes), scales, slots)
            by_slot.copy_(of_slots.view(flat.dtype).view(by_slot.shape))
        return
    caches = as_operand(key_cache), as_operand(value_cache)
    call(
        "cache_write_shared_scale",
        key,
        value,
        *caches,
        key_scales,
        value_scales,
        slots,
        LAYOUTS.index(layout),
    )
    mark_written(key_cache, value_cache, key_scales, value_scales)


def _share_scales(rows, codes, scales, slots) -> torch.Tensor:
    """Returns the codes (slots, heads, features) after the write; updates scales in place."""
    if len(rows) == 0:
        return codes
    groups, size, dtype = scales.shape[0], codes.shape[0] // scales.shape[0], codes.dtype
    tokens = slots.new_full((codes.shape[0],), -1, dtype=torch.int64)
    kept = slots >= 0
    order = torch.arange(len(slots), device=slots.device)[kept]
    tokens.scatter_reduce_(0, slots[kept].long(), order, "amax")
    written = (tokens >= 0).view(groups, size)
    first = torch.where(written.any(1), written.int().argmax(1), 0)
    new = torch.where(tokens[:, None, None] >= 0, rows[tokens.clamp_min(0)].float(), 0.0)
    grouped = new.abs().nan_to_num(0.0, torch.inf).unflatten(0, (groups, size))
    needed = grouped.amax((1, 3)).clamp_min(SHARED_FLOOR) / _largest(dtype)
    grows = written.any(1)[:, None] & ((first == 0)[:, None] | (scales < needed))
    held = grows[:, None] & (torch.arange(size, device=slots.device) < first[:, None])[..., None]
    old = codes.float() * _each_slot(scales, size)
    scales.copy_(torch.where(grows, needed, scales))
    anew = rounded_to_codes(old / _each_slot(scales, size), dtype, None)
    as_bytes = torch.where(held.flatten(0, 1)[..., None], anew.view(torch.uint8), codes.view(torch.uint8))
    of_new = rounded_to_codes(new, dtype, _each_slot(scales, size))
    as_bytes = torch.where(tokens[:, None, None] >= 0, of_new.view(torch.uint8), as_bytes)
    return as_bytes.view(dtype)


def _each_slot(scales, size):
    """Scales of groups as (slots, heads, 1)."""
    return scales.repeat_interleave(size, 0)[..., None]


def _write_scaled(key, value, key_cache, value_cache, key_scales, value_scales, slots, layout) -> None:
    if _backend.uses_torch():
        for rows, cache, scales, values in (
            (key, key_cache, key_scales, False),
            (value, value_cache, value_scales, True),
        ):
            found = _scales_of(rows, _codes_in(cache), 0.0)
            kept = slots >= 0
            places = slots[kept].long()
            scales[places // scales.shape[1], places % scales.shape[1]] = found[kept].squeeze(-1)
            write_in_torch(_by_slot(cache, layout, values), rows, slots, found, values and layout == "asm")
        return
    caches = as_operand(key_cache), as_operand(value_cache)
    call("cache_write_scaled", key, value, *caches, key_scales, value_scales, slots, LAYOUTS.index(layout))
    mark_written(key_cache, value_cache, key_scales, value_scales)


def _scales_of(rows, dtype, floor):
    """Scales over the last dimension, which is kept."""
    largest = rows.float().abs().amax(-1, keepdim=True).clamp_min(floor)
    scales = largest / _largest(dtype)
    return torch.where(scales == 0, 1.0, scales)


def _write_indexer_in_torch(k, kv_cache, slots, group, powers_of_two) -> None:
    dtype, features = dtype_of("fp8", k.device), k.shape[1]
    grouped = k.float().unflatten(-1, (-1, group))
    scales = _scales_of(grouped, dtype, INDEXER_FLOOR)
    if powers_of_two:
        mantissas, exponents = torch.frexp(scales)
        scales = torch.ldexp(torch.ones_like(scales), torch.where(mantissas == 0.5, exponents - 1, exponents))
    codes = rounded_to_codes(grouped, dtype, scales).flatten(-2).view(torch.uint8)
    size = kv_cache.shape[1]
    blocks = kv_cache.view(torch.uint8).flatten(1)
    of_codes = blocks[:, : size * features].unflatten(-1, (size, features))
    of_scales = blocks[:, size * features :].unflatten(-1, (size, -1))
    kept = slots >= 0
    places = slots[kept].long()
    of_codes[places // size, places % size] = codes[kept]
    of_scales[places // size, places % size] = scales.squeeze(-1).contiguous().view(torch.uint8)[kept]


def _slot_counts(cache: torch.Tensor, sizes: tuple[Any, ...]) -> tuple[int, int]:
    """The number of blocks, and of slots in each."""
    axis = next(i for i, size in enumerate(sizes) if isinstance(size, str) and size.startswith("block_size"))
    return cache.shape[0], cache.shape[axis] * (sizes[-1] if sizes[axis] != "block_size" else 1)


def _check_slot_count(where: str, name: str, blocks: int, block_size: int) -> None:
    if not 1 <= blocks * block_size < 2**31:
        raise ValueError(
            f"{where}: {name} has {blocks} blocks of {block_size} slots; 1 .. 2147483647 slots are allowed"
        )


def _check_rows(where, name, rows, first_name, first, dimensions, shape) -> None:
    check_tensor(where, name, rows)
    check_dtype_and_device(where, name, rows, DTYPES, first_name, first)
    if rows.dim() not in dimensions or rows.shape[-1] == 0:
        raise ValueError(
            f"{where}: {name} has shape {tuple(rows.shape)}; it must be {shape}, with 1 feature or more"
        )
    if rows.dtype != first.dtype:
        raise TypeError(
            f"{where}: {first_name} is {first.dtype} and {name} is {rows.dtype}; convert one to the other"
        )
    check_gets_no_gradient(where, name, rows)


def check_slots(where: str, slots: torch.Tensor, tokens: int, first_name: str, first: torch.Tensor) -> None:
    """Raises unless there is a slot for each token."""
    check_tensor(where, "slots", slots)
    check_dtype_and_device(where, "slots", slots, (torch.int32, torch.int64), first_name, first)
    if slots.dim() != 1 or slots.shape[0] != tokens:
        raise ValueError(f"{where}: slots has shape {tuple(slots.shape)}; it must be ({tokens},)")


def _check_cache(where, name, cache, first_name, first) -> None:
    check_tensor(where, name, cache)
    allowed = (first.dtype, dtype_of("fp8", first.device), torch.uint8, torch.int8)
    check_dtype_and_device(where, name, cache, allowed, first_name, first)
    if torch.is_grad_enabled() and cache.requires_grad:
        raise ValueError(
            f"{where}: {name} requires a gradient and gets none, being written in place; pass {name}.detach()"
        )
    _check_slots_are_apart(where, name, cache)


def _check_slots_are_apart(where, name, cache) -> None:
    if any(size > 1 and step == 0 for size, step in zip(cache.shape, cache.stride(), strict=True)):
        raise ValueError(f"{where}: {name} is expanded, so that slots share memory; clone it first")


def check_scale(
    where: str, name: str, scale: torch.Tensor | None, first_name: str, first: torch.Tensor
) -> None:
    """Raises unless the scale is a single float32."""
    if scale is None:
        return
    check_tensor(where, name, scale)
    check_dtype_and_device(where, name, scale, (torch.float32,), first_name, first)
    if scale.numel() != 1:
        raise ValueError(f"{where}: {name} has shape {tuple(scale.shape)}; it must have one element")


def _check_scale(where, name, scale, cache_name, cache) -> None:
    check_scale(where, name, scale, cache_name, cache)
    if scale is not None and not is_quantized(cache):
        raise ValueError(
            f"{where}: {name} is given and {cache_name} is {cache.dtype}; only caches of 8-bit codes have a scale"
        )


def _by_slot(cache: torch.Tensor, layout: Layout, values: bool) -> torch.Tensor:
    """The cache with its blocks and positions, or groups of positions, first, followed by head and features."""
    if layout == "nhd":
        return cache
    if layout == "hnd" or (layout == "paged" and values):
        return cache.transpose(1, 2) if layout == "hnd" else cache.permute(0, 3, 1, 2)
    return cache.permute(0, 2, 4, 1, 3) if values else cache.permute(0, 3, 1, 2, 4)


def rounded_to_codes(rows: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None) -> torch.Tensor:
    largest = _largest(dtype)
    scaled = (rows.float() if scale is None else rows.float() * (1 / scale)).clamp(-largest, largest)
    return (
        torch.where(scaled.isnan(), 0, scaled.round()).to(dtype) if dtype == torch.int8 else scaled.to(dtype)
    )


def _codes_in(cache: torch.Tensor) -> torch.dtype:
    """The dtype of the bytes of a quantized cache."""
    return torch.int8 if cache.dtype == torch.int8 else dtype_of("fp8", cache.device)


def _largest(dtype: torch.dtype) -> float:
    return 127.0 if dtype == torch.int8 else torch.finfo(dtype).max


def write_in_torch(cache, rows, slots, scale, grouped=False) -> None:
    """`cache` as returned by _by_slot; grouped: its second and third dimensions are both of positions."""
    kept = slots >= 0
    slots, rows = slots[kept].long(), rows[kept]
    block_size = cache.shape[1] * (cache.shape[2] if grouped else 1)
    if is_quantized(cache):
        if scale is not None and scale.numel() > 1:  # of each row
            scale = scale[kept]
        codes = rounded_to_codes(rows, _codes_in(cache), scale)
        rows, cache = codes.view(torch.uint8), cache.view(torch.uint8)
    block, place = slots // block_size, slots % block_size
    if grouped:
        cache[block, place // cache.shape[2], place % cache.shape[2]] = rows
    else:
        cache[block, place] = rows.reshape(rows.shape[0], *cache.shape[2:])
