# SPDX-License-Identifier: MIT
"""Splits a packed projection into queries, keys and values, normalizes and rotates them and writes them to a cache, in one launch."""

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
    qkv: torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Tensor],
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
    """Split a packed QKV projection into heads, normalize and rotate q and k, and write k and v to a cache, in one launch.

    - `qkv`: (tokens, n) or (batch, tokens, n), bfloat16, float16 or float32, any strides: `num_heads` heads of queries, then `num_kv_heads`
      of keys, then as many of values, all with the same number of features, up to 1024. Results are (..., tokens, heads, features). With a
      cache also separate (q, k, v), each (tokens, heads, features) or with a leading batch dimension: for a packed tensor in another order,
      such as one with gates next to its queries, these are views.
    - `q_weight`, `k_weight`: (features,), bfloat16, float16 or float32, both of one dtype. The features of each head become
      x * rsqrt(mean(x ** 2) + eps) * weight before they are rotated; without a weight they are not normalized. Everything from qkv to the
      result is float32 and rounded once; Transformers rounds between norm and rotation.
    - `eps`: the norm's epsilon.
    - `cos`, `sin`, `interleaved`, `positions`, `offsets`, `cu_seqlens`, `offset`, `nope_first`, `full_tables`: as in `rotary`.
    - `key_cache`, `value_cache`, `slots`, `layout`, `k_scale`, `v_scale`: as in `cache_write`, with one slot per token (batch * tokens,):
      all required tensors, or none. The k and v that are returned are written. Tokens with a negative slot are not written to the cache but
      are in the results. 16-bit qkv only, and no gradient.

    Without a cache, differentiable once in qkv, q_weight and k_weight. Raises TypeError or ValueError, before anything is launched, for
    arguments that no kernel supports.
    """
    where = "hipkittens.qkv_rotary"
    rotation = Rotation(
        cos, sin, interleaved, positions, offsets, cu_seqlens, offset, nope_first, full_tables
    )
    cached = any(each is not None for each in (key_cache, value_cache, slots, k_scale, v_scale))
    apart = isinstance(qkv, tuple | list)
    if apart and not cached:
        raise ValueError(
            f"{where}: qkv is {type(qkv).__name__} and there is no cache; give a packed tensor, or use rms_norm and rotary_qk"
        )
    _check_counts(where, num_heads, num_kv_heads)
    if apart:
        heads = _heads_apart(where, qkv, num_heads, num_kv_heads)
        has_batch = qkv[0].dim() == 4
    else:
        check_tensor(where, "qkv", qkv)
        check_dtype_and_device(where, "qkv", qkv, CACHE_DTYPES if cached else DTYPES, "qkv", qkv)
        heads = _heads_of(where, qkv, num_heads, num_kv_heads)
        has_batch = qkv.dim() == 3
    first = heads[0]
    batch, tokens, _, features = first.shape
    if not 1 <= features <= 1024:
        raise ValueError(f"{where}: heads of qkv have {features} features; 1 to 1024 are allowed")
    rotation.check_types(where, "qkv", first)
    _check_weights(where, first, features, q_weight, k_weight)
    eps = number(where, "eps", eps)
    rotation.check(where, "a head of qkv", first, batch, tokens, features)
    if cached:
        _check_cache(
            where, heads, key_cache, value_cache, slots, layout, k_scale, v_scale, q_weight, k_weight
        )
    elif layout != "nhd":
        raise ValueError(
            f"{where}: layout is {layout!r} and there is no cache; give key_cache, value_cache and slots"
        )
    _backend.check_device(where, "qkv", first)
    operands = rotation.operands(batch, tokens)
    if _backend.uses_torch():
        results = _in_torch(heads, q_weight, k_weight, operands, eps)
        if cached:
            keys, values = (each.flatten(0, 1) for each in results[1:])
            cache_write(
                keys, values, key_cache, value_cache, slots, layout=layout, k_scale=k_scale, v_scale=v_scale
            )
    elif cached:
        caches = as_operand(key_cache), as_operand(value_cache)
        results = call(
            "qkv_rotary_cache", *heads, q_weight, k_weight, *caches, slots, k_scale, v_scale, *operands, eps, LAYOUTS.index(layout)
        )  # fmt: skip
        mark_written(key_cache, value_cache)
    else:
        packed = qkv if has_batch else qkv.unsqueeze(0)
        results = call("qkv_rotary", packed, q_weight, k_weight, *operands, num_heads, num_kv_heads, eps)
    q, k, v = results if has_batch else (each.squeeze(0) for each in results)
    return q, k, v


def _check_counts(where: str, num_heads: int, num_kv_heads: int) -> None:
    for name, count in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
        check_whole_number(where, name, count)
        if count < 1:
            raise ValueError(f"{where}: {name} is {count}; it must be 1 or more")


def _heads_of(where: str, qkv: torch.Tensor, num_heads: int, num_kv_heads: int) -> tuple[torch.Tensor, ...]:
    """q, k and v of a packed qkv, each (batch, tokens, heads, features)."""
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
    packed = (qkv if qkv.dim() == 3 else qkv.unsqueeze(0)).unflatten(-1, (heads, -1))
    return packed.split((num_heads, num_kv_heads, num_kv_heads), -2)


def _heads_apart(where, qkv, num_heads: int, num_kv_heads: int) -> tuple[torch.Tensor, ...]:
    """The same for q, k and v that are passed separately; their batch dimension may be missing."""
    names = ("q", "k", "v")
    if len(qkv) != 3:
        raise ValueError(f"{where}: qkv has {len(qkv)} tensors; it must be (q, k, v)")
    for name, each in zip(names, qkv, strict=True):
        check_tensor(where, f"{name} of qkv", each)
        check_dtype_and_device(where, f"{name} of qkv", each, CACHE_DTYPES, "q of qkv", qkv[0])
        if each.dtype != qkv[0].dtype:
            raise TypeError(
                f"{where}: q of qkv is {qkv[0].dtype} and {name} is {each.dtype}; convert one to the other"
            )
    q = qkv[0]
    for name, each, count in zip(names, qkv, (num_heads, num_kv_heads, num_kv_heads), strict=True):
        wanted = (*q.shape[:-2], count, q.shape[-1])
        if q.dim() not in (3, 4) or tuple(each.shape) != wanted:
            text = (
                str(wanted) if q.dim() in (3, 4) else f"(tokens, {count}, features), or with a batch in front"
            )
            raise ValueError(f"{where}: {name} of qkv has shape {tuple(each.shape)}; it must be {text}")
    return tuple(each if each.dim() == 4 else each.unsqueeze(0) for each in qkv)


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
    where, heads, key_cache, value_cache, slots, layout, k_scale, v_scale, q_weight, k_weight
) -> None:
    for name, value in (("key_cache", key_cache), ("value_cache", value_cache), ("slots", slots)):
        if value is None:
            raise ValueError(
                f"{where}: {name} is None and another argument of a cache is not; give key_cache, value_cache and slots"
            )
    if layout not in LAYOUTS:
        raise ValueError(f"{where}: layout is {layout!r}; allowed: {', '.join(LAYOUTS)}")
    if torch.is_grad_enabled():
        named = [*(("qkv", each) for each in heads), ("q_weight", q_weight), ("k_weight", k_weight)]
        for name, value in named:
            if value is not None and value.requires_grad:
                raise ValueError(
                    f"{where}: {name} requires a gradient and gets none where a cache is written; use torch.no_grad(), or "
                    "write it with cache_write"
                )
    q, k, _ = heads
    check_slots(where, slots, q.shape[0] * q.shape[1], "qkv", q)
    rows = q.new_empty((0, *k.shape[2:]))  # what is written, but for its tokens
    check_caches(where, rows, rows, key_cache, value_cache, layout, k_scale, v_scale)


def _in_torch(heads, q_weight, k_weight, operands, eps):
    q, k, v = heads
    wide = torch.promote_types(q.dtype, torch.float32)
    turned = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        y = x.to(wide)
        if weight is not None:
            y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight.to(wide)
        turned.append(turned_in_torch(y, *operands).to(q.dtype))
    return *turned, v.contiguous()
