# SPDX-License-Identifier: MIT
"""Rotary embeddings fused with cache writes, in one launch: for multi-head latent attention, and for separate queries, keys and values."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_tensor
from ._call import call
from ._rotation import DTYPES, Rotation, turned_in_torch
from .cache import DTYPES as CACHE_DTYPES
from .cache import (
    LAYOUTS,
    Layout,
    as_operand,
    cache_write,
    check_caches,
    check_latent_cache,
    check_scale,
    check_slots,
    mark_written,
    rounded_to_codes,
    write_in_torch,
)
from .quantization import dtype_of


@_backend.interruptible
def mla_rotary(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    k_nope: torch.Tensor,
    k_pe: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    positions: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    offset: int = 0,
    nope_first: bool = True,
    full_tables: bool = False,
    kv_cache: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    q_dtype: torch.dtype | None = None,
    q_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Assemble q and k of multi-head latent attention in one launch: rotate the rotary parts, concatenate, and write k to a cache.

    - `q_nope`, `q_pe`: (tokens, heads, nope) and (tokens, heads, rotary), or both with a leading batch dimension: bfloat16, float16 or
      float32, any strides. In DeepSeek V3 nope is 512 (the latent, where the key projection is absorbed) or 128, and rotary is 64.
    - `k_nope`, `k_pe`: the same with the number of key heads and q's numbers of features; without the head dimension, one head.
    - `cos`, `sin`, `interleaved`, `positions`, `offsets`, `cu_seqlens`, `offset`, `full_tables`: as in `rotary`. All features of q_pe
      and k_pe are rotated.
    - `nope_first`: each head of the results begins with the features that are not rotated; if False, with the rotated ones.
    - `kv_cache`: (blocks, block_size, nope + rotary) or (blocks, block_size, key heads, nope + rotary), written in place with the k that
      is returned. Dtypes as in `cache_write`; 16-bit tensors only, and no gradient.
    - `slots`, `scale`: as in `cache_write`, for kv_cache, with one slot per token (batch * tokens,). Tokens with a negative slot are not
      written to the cache but are in the results.
    - `q_dtype`: the target's float8, for attention to a float8 cache; q is then round(q * (1 / q_scale)), clamped to the largest
      representable value. Only with kv_cache. None is q_nope's dtype.
    - `q_scale`: one float32, with q_dtype. None is 1.

    Returns q (..., tokens, heads, nope + rotary), and k likewise, with the head dimension if k_nope has one. Angles are applied in float32
    and rounded once. Differentiable in all four tensors if no cache is written. Raises TypeError or ValueError, before anything is
    launched, for arguments that no kernel supports.
    """
    where = "hipkittens.mla_rotary"
    rotation = Rotation(
        cos, sin, interleaved, positions, offsets, cu_seqlens, offset, nope_first, full_tables
    )
    cached = any(each is not None for each in (kv_cache, slots, scale, q_dtype, q_scale))
    named = (("q_nope", q_nope), ("q_pe", q_pe), ("k_nope", k_nope), ("k_pe", k_pe))
    _check_tensors(where, named, CACHE_DTYPES if cached else DTYPES)
    one_head = k_nope.dim() == q_nope.dim() - 1
    if q_nope.dim() not in (3, 4):
        raise ValueError(
            f"{where}: q_nope has shape {tuple(q_nope.shape)}; it must be (tokens, heads, features), or with a batch in front"
        )
    if one_head and k_pe.dim() == k_nope.dim():
        k_nope, k_pe = k_nope.unsqueeze(-2), k_pe.unsqueeze(-2)
    tensors = (q_nope, q_pe, k_nope, k_pe)
    if any(each.dim() != q_nope.dim() for each in tensors):
        raise ValueError(
            f"{where}: q_nope has shape {tuple(q_nope.shape)}, q_pe {tuple(q_pe.shape)}, k_nope {tuple(named[2][1].shape)} and k_pe "
            f"{tuple(named[3][1].shape)}; all have the same dimensions, but that k_nope and k_pe may lack the one of heads"
        )
    q_nope, q_pe, k_nope, k_pe = (each if each.dim() == 4 else each.unsqueeze(0) for each in tensors)
    batch, tokens, heads, nope = q_nope.shape
    _check_shape(where, "q_pe", q_pe, (batch, tokens, heads, None), "q_nope")
    _check_shape(where, "k_nope", k_nope, (batch, tokens, None, nope), "q_nope")
    _check_shape(where, "k_pe", k_pe, (batch, tokens, k_nope.shape[2], q_pe.shape[3]), "k_nope and q_pe")
    rotation.check_types(where, "q_nope", q_nope)
    rotation.check(where, "q_pe", q_nope, batch, tokens, q_pe.shape[3])
    _check_all_turned(where, rotation, q_pe.shape[3])
    if cached:
        _check_latents(where, named, k_nope, nope + q_pe.shape[3], kv_cache, slots, scale, q_dtype, q_scale)
    _backend.check_device(where, "q_nope", q_nope)
    operands = rotation.operands(batch, tokens)
    parts = (q_nope, q_pe, k_nope, k_pe)
    if _backend.uses_torch():
        q, k = (_joined(*pair, operands, nope_first) for pair in (parts[:2], parts[2:]))
        if cached:
            rows = k.flatten(0, 1)
            write_in_torch(kv_cache, rows[:, 0] if kv_cache.dim() == 3 else rows, slots, scale)
        q = q if q_dtype is None else rounded_to_codes(q, q_dtype, q_scale)
    elif cached:
        with_heads = kv_cache.unsqueeze(2) if kv_cache.dim() == 3 else kv_cache
        q, k = call(
            "mla_rotary_cache", *parts, as_operand(with_heads), slots, scale, q_scale, *operands, q_dtype is not None
        )  # fmt: skip
        q = q if q_dtype is None else q.view(q_dtype)
        mark_written(kv_cache)
    else:
        q, k = call("mla_rotary", *parts, *operands)
    if tensors[0].dim() == 3:
        q, k = q.squeeze(0), k.squeeze(0)
    return q, k.squeeze(-2) if one_head else k


@_backend.interruptible
def rotary_cache_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    layout: Layout = "nhd",
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    interleaved: bool = False,
    positions: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    offset: int = 0,
    nope_first: bool = False,
    full_tables: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k and write the rotated k and v to a paged cache, in one launch; returns (q, k).

    The same as `rotary_qk` of q and k followed by `cache_write` of k and v.

    - `q`, `k`, `v`: (tokens, heads, features), or with a leading batch dimension: bfloat16 or float16, any strides. k and v have the same
      number of heads. For a packed projection use `qkv_rotary`.
    - `cos`, `sin`, `interleaved`, `positions`, `offsets`, `cu_seqlens`, `offset`, `nope_first`, `full_tables`: as in `rotary`.
    - `key_cache`, `value_cache`, `slots`, `layout`, `k_scale`, `v_scale`: as in `cache_write`, with one slot per token
      (batch * tokens,). Tokens with a negative slot are not written to the caches but are in the results.

    Not differentiable: raises ValueError where autograd would record the call. Raises TypeError or ValueError, before anything is
    launched, for arguments that no kernel supports.
    """
    where = "hipkittens.rotary_cache_write"
    rotation = Rotation(
        cos, sin, interleaved, positions, offsets, cu_seqlens, offset, nope_first, full_tables
    )
    named = (("q", q), ("k", k), ("v", v))
    _check_tensors(where, named, CACHE_DTYPES)
    if layout not in LAYOUTS:
        raise ValueError(f"{where}: layout is {layout!r}; allowed: {', '.join(LAYOUTS)}")
    if q.dim() not in (3, 4) or k.dim() != q.dim() or v.dim() != q.dim():
        raise ValueError(
            f"{where}: q has shape {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}; all must be (tokens, heads, "
            "features), or with a batch in front"
        )
    whole = [each if each.dim() == 4 else each.unsqueeze(0) for each in (q, k, v)]
    batch, tokens, _, features = whole[0].shape
    _check_shape(where, "k", whole[1], (batch, tokens, None, features), "q")
    _check_shape(where, "v", whole[2], tuple(whole[1].shape), "k")
    rotation.check_types(where, "q", q)
    rotation.check(where, "q", q, batch, tokens, features)
    _refuse_gradients(where, named)
    check_slots(where, slots, batch * tokens, "q", q)
    rows = q.new_empty((0, *whole[1].shape[2:]))  # the shape that is written, without tokens
    check_caches(where, rows, rows, key_cache, value_cache, layout, k_scale, v_scale)
    _backend.check_device(where, "q", q)
    operands = rotation.operands(batch, tokens)
    if _backend.uses_torch():
        results = tuple(turned_in_torch(each, *operands) for each in whole[:2])
        cache_write(
            results[1].flatten(0, 1), whole[2].flatten(0, 1), key_cache, value_cache, slots,
            layout=layout, k_scale=k_scale, v_scale=v_scale,
        )  # fmt: skip
    else:
        caches = as_operand(key_cache), as_operand(value_cache)
        number = LAYOUTS.index(layout)
        results = call("rotary_cache_write", *whole, *caches, slots, k_scale, v_scale, *operands, number)
        mark_written(key_cache, value_cache)
    q_out, k_out = results if q.dim() == 4 else (each.squeeze(0) for each in results)
    return q_out, k_out


def _check_tensors(where, named, dtypes) -> None:
    first_name, first = named[0]
    for name, value in named:
        check_tensor(where, name, value)
        check_dtype_and_device(where, name, value, dtypes, first_name, first)
        if value.dtype != first.dtype:
            raise TypeError(
                f"{where}: {first_name} is {first.dtype} and {name} is {value.dtype}; convert one to the other"
            )


def _check_shape(where, name, value, sizes, like) -> None:
    """sizes: four numbers, None for a dimension of any size."""
    if any(want is not None and size != want for size, want in zip(value.shape, sizes, strict=True)):
        text = ", ".join("any" if want is None else str(want) for want in sizes)
        raise ValueError(
            f"{where}: {name} has shape {tuple(value.shape)}, as (batch, tokens, heads, features); with {like} it must be ({text})"
        )


def _check_all_turned(where, rotation, rotary) -> None:
    turned = rotation.cos.shape[1] * (1 if rotation.full_tables else 2)
    if turned != rotary:
        raise ValueError(
            f"{where}: cos has {rotation.cos.shape[1]} columns, which turn {turned} features, and q_pe has {rotary}; all of them are "
            "turned"
        )


def _refuse_gradients(where, named) -> None:
    for name, value in named:
        if torch.is_grad_enabled() and value.requires_grad:
            raise ValueError(
                f"{where}: {name} requires a gradient and gets none where a cache is written; use torch.no_grad()"
            )


def _check_latents(where, named, k_nope, features, kv_cache, slots, scale, q_dtype, q_scale) -> None:
    for name, value in (("kv_cache", kv_cache), ("slots", slots)):
        if value is None:
            raise ValueError(
                f"{where}: {name} is None and another argument of a cache is not; give kv_cache and slots"
            )
    _refuse_gradients(where, named)
    check_slots(where, slots, k_nope.shape[0] * k_nope.shape[1], "q_nope", k_nope)
    heads = k_nope.shape[2]
    of_slot = [(features,)] if heads == 1 else []
    check_latent_cache(where, "q_nope", k_nope, [*of_slot, (heads, features)], kv_cache, scale)
    if q_dtype is None:
        if q_scale is not None:
            raise ValueError(
                f"{where}: q_scale is given and q_dtype is not; only q of 8-bit floats has a scale"
            )
        return
    if q_dtype != dtype_of("fp8", k_nope.device):
        raise TypeError(
            f"{where}: q_dtype is {q_dtype}; allowed: None, and the target's {dtype_of('fp8', k_nope.device)}"
        )
    check_scale(where, "q_scale", q_scale, "q_nope", k_nope)


def _joined(nope, pe, operands, nope_first):
    """Concatenates both parts, each (batch, tokens, heads, features)."""
    cos, sin, positions, offsets, column_cos, column_sin, offset, interleaved, _, full, inverse = operands
    turned = turned_in_torch(
        pe, cos, sin, positions, offsets, column_cos, column_sin, offset, interleaved, False, full, inverse
    )
    return torch.cat((nope, turned) if nope_first else (turned, nope), -1)
