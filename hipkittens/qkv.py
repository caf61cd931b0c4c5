# SPDX-License-Identifier: MIT
"""A packed projection of queries, keys and values apart: normalised, turned, and written to a cache, in one launch."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_tensor, check_whole_number, number
from ._call import call
from ._rotation import DTYPES, Rotation, turned_in_torch
from .cache import DTYPES as CACHE_DTYPES
from .cache import (
    LAYOUTS,
    Layout,
    as_operand,
    cache_write,
    check_caches,
    check_slots,
    mark_written,
)


@_backend.interruptible
def qkv_rotary(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    *,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    interleaved: bool = False,
    positions: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    offset: int = 0,
    nope_first: bool = False,
    full_tables: bool = False,
    key_cache: torch.Tensor | None = None,
    value_cache: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    layout: Layout = "nhd",
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of packed rows, in one launch: split into heads, q and k normalised and turned, k and v written to a cache.

    qkv        (tokens, n) or (batch, tokens, n), bfloat16, float16 or float32: num_heads of queries, then num_kv_heads of keys, then as
               many of values, all of the same number of features; any strides. Results are (..., tokens, heads, features).
    q_weight, k_weight  (features,), bfloat16, float16 or float32, both of one dtype: x * rsqrt(mean(x ** 2) + eps) * weight over
               the features of each head, before it is turned; without one, none. Everything from qkv to the result is float32 and
               is rounded once; Transformers rounds between norm and rotation.
    cos, sin, interleaved, positions, offsets, cu_seqlens, offset, nope_first, full_tables  as in `rotary`
    key_cache, value_cache, slots, layout, k_scale, v_scale  as in `cache_write`, with a slot for each token (batch * tokens,): all
               tensors that are needed, or none. What is written is the k and v that are returned. Slots that are negative leave
               the cache alone, not the results. 16-bit qkv only, and no gradient.

    Gradients: of qkv, q_weight and k_weight, where no cache is written; not again. A head may have features up to 1024. Raises
    TypeError or ValueError, before anything is launched, for what has no kernel.
    """
    where = "hipkittens.qkv_rotary"
    rotation = Rotation(
        cos, sin, interleaved, positions, offsets, cu_seqlens, offset, nope_first, full_tables
    )
    cached = any(each is not None for each in (key_cache, value_cache, slots, k_scale, v_scale))
    check_tensor(where, "qkv", qkv)
    check_dtype_and_device(where, "qkv", qkv, CACHE_DTYPES if cached else DTYPES, "qkv", qkv)
    rotation.check_types(where, "qkv", qkv)
    features = _features(where, qkv, num_heads, num_kv_heads)
    packed = qkv if qkv.dim() == 3 else qkv.unsqueeze(0)
    batch, tokens = packed.shape[:2]
    _check_weights(where, qkv, features, q_weight, k_weight)
    eps = number(where, "eps", eps)
    rotation.check(where, "a head of qkv", qkv, batch, tokens, features)
    if cached:
        _check_cache(
            where, packed, num_kv_heads, features, key_cache, value_cache, slots, layout, k_scale, v_scale,
            q_weight, k_weight,
        )  # fmt: skip
    elif layout != "nhd":
        raise ValueError(
            f"{where}: layout is {layout!r} and there is no cache; give key_cache, value_cache and slots"
        )
    _backend.check_device(where, "qkv", qkv)
    operands = rotation.operands(batch, tokens)
    counts = (num_heads, num_kv_heads)
    if _backend.uses_torch():
        results = _in_torch(packed, q_weight, k_weight, operands, *counts, eps)
        if cached:
            keys, values = (each.flatten(0, 1) for each in results[1:])
            cache_write(
                keys, values, key_cache, value_cache, slots, layout=layout, k_scale=k_scale, v_scale=v_scale
            )
    elif cached:
        caches = as_operand(key_cache), as_operand(value_cache)
        results = call(
            "qkv_rotary_cache", packed, q_weight, k_weight, *caches, slots, k_scale, v_scale, *operands, *counts, eps, LAYOUTS.index(layout)
        )  # fmt: skip
        mark_written(key_cache, value_cache)
    else:
        results = call("qkv_rotary", packed, q_weight, k_weight, *operands, *counts, eps)
    q, k, v = results if qkv.dim() == 3 else (each.squeeze(0) for each in results)
    return q, k, v


def _features(where: str, qkv: torch.Tensor, num_heads: int, num_kv_heads: int) -> int:
    """Of a head."""
    for name, count in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
        check_whole_number(where, name, count)
        if count < 1:
            raise ValueError(f"{where}: {name} is {count}; it must be 1 or more")
    if qkv.dim() not in (2, 3):
        raise ValueError(
            f"{where}: qkv has shape {tuple(qkv.shape)}; it must be (tokens, n) or (batch, tokens, n)"
        )
    heads = num_heads + 2 * num_kv_heads
    if qkv.shape[-1] == 0 or qkv.shape[-1] % heads:
        raise ValueError(
            f"{where}: qkv has {qkv.shape[-1]} columns for {heads} heads, {num_heads} of queries and {num_kv_heads} each of keys "
            "and values; it must have a multiple of that"
        )
    features = qkv.shape[-1] // heads
    if features > 1024:
        raise ValueError(f"{where}: heads of qkv have {features} features; 1 to 1024 are allowed")
    return features


def _check_weights(where, qkv, features, q_weight, k_weight) -> None:
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        if weight is None:
            continue
        check_tensor(where, name, weight)
        check_dtype_and_device(where, name, weight, DTYPES, "qkv", qkv)
        if tuple(weight.shape) != (features,):
            raise ValueError(f"{where}: {name} has shape {tuple(weight.shape)}; it must be ({features},)")
    if q_weight is not None and k_weight is not None and q_weight.dtype != k_weight.dtype:
        raise TypeError(
            f"{where}: q_weight is {q_weight.dtype} and k_weight {k_weight.dtype}; both have one dtype"
        )


def _check_cache(
    where,
    packed,
    num_kv_heads,
    features,
    key_cache,
    value_cache,
    slots,
    layout,
    k_scale,
    v_scale,
    q_weight,
    k_weight,
) -> None:
    for name, value in (("key_cache", key_cache), ("value_cache", value_cache), ("slots", slots)):
        if value is None:
            raise ValueError(
                f"{where}: {name} is None and another argument of a cache is not; give key_cache, value_cache and slots"
            )
    if layout not in LAYOUTS:
        raise ValueError(f"{where}: layout is {layout!r}; allowed: {', '.join(LAYOUTS)}")
    if torch.is_grad_enabled():
        for name, value in (("qkv", packed), ("q_weight", q_weight), ("k_weight", k_weight)):
            if value is not None and value.requires_grad:
                raise ValueError(
                    f"{where}: {name} requires a gradient and gets none where a cache is written; use torch.no_grad(), or "
                    "write it with cache_write"
                )
    tokens = packed.shape[0] * packed.shape[1]
    check_slots(where, slots, tokens, "qkv", packed)
    rows = packed.new_empty((0, num_kv_heads, features))  # what is written, but for its tokens
    check_caches(where, rows, rows, key_cache, value_cache, layout, k_scale, v_scale)


def _in_torch(packed, q_weight, k_weight, operands, num_heads, num_kv_heads, eps):
    heads = packed.unflatten(-1, (num_heads + 2 * num_kv_heads, -1))
    q, k, v = heads.split((num_heads, num_kv_heads, num_kv_heads), -2)
    wide = torch.promote_types(packed.dtype, torch.float32)
    turned = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        y = x.to(wide)
        if weight is not None:
            y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight.to(wide)
        turned.append(turned_in_torch(y, *operands).to(packed.dtype))
    return *turned, v.contiguous()
