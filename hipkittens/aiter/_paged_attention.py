# SPDX-License-Identifier: MIT
"""Decoding and chunked prefill by AITER's names: hipkittens.attention_paged with caches in AITER's layouts.

Tensors for AITER's own partial results (exp_sums, max_logits, tmp_out, workspace_buffer) are not touched, and arguments that only choose
among its kernels (lengths of the longest sequence, partition sizes, high_precision, kernelName, compute_type) are ignored. Scales are used
for 8-bit caches: a number, or float32 of one element, of each key head, or of each key, [blocks, key heads, block_size].
"""

from __future__ import annotations

from typing import Any

import torch

from .. import attention_merge, attention_paged
from ..attention import attention_varlen
from ._results import check_place, put, refuse


def pa_fwd_asm(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables_stride0: int,
    max_qlen: int = 1,
    K_QScale: torch.Tensor | None = None,
    V_QScale: torch.Tensor | None = None,
    out_: torch.Tensor | None = None,
    qo_indptr: torch.Tensor | None = None,
    high_precision: int | None = 1,
    kernelName: str | None = None,
) -> torch.Tensor:
    """Q [tokens, heads, D] to K [blocks, key heads, D / x, block_size, x] and V [blocks, key heads, block_size / x, D, x], into out_ or a
    new tensor. Each sequence has max_qlen tokens, or those of qo_indptr, causal among themselves; the scale is 1 / sqrt(D). The table's
    own stride is used instead of block_tables_stride0. Quantized values are converted to Q's dtype exactly, whatever high_precision is.
    """
    return attention_paged(
        Q, K, V, block_tables, context_lens, qo_indptr, max_qlen, out=out_, cache_layout="asm",
        **_scales(K, K_QScale, V_QScale),
    )  # fmt: skip


def paged_attention_rocm(
    out: torch.Tensor,
    exp_sums: torch.Tensor,
    max_logits: torch.Tensor,
    tmp_out: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    scale: float,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    block_size: int,
    max_context_len: int,
    alibi_slopes: torch.Tensor | None,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    fp8_out_scale: torch.Tensor | None = None,
    partition_size: int = 256,
    mtp: int = 1,
    q_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """query [sequences * mtp, heads, D] to key_cache [blocks, key heads, D / x, block_size, x] and value_cache [blocks, key heads, D,
    block_size], into out. num_kv_heads and block_size are those of the caches.
    """
    name = "paged_attention_rocm"
    _refuse(name, fp8_out_scale=fp8_out_scale, q_scale=q_scale)
    _check_kind(name, kv_cache_dtype, key_cache)
    _check_sizes(name, key_cache.shape[1], num_kv_heads, key_cache.shape[3], block_size)
    return attention_paged(
        query, key_cache, value_cache, block_tables, context_lens, None, mtp, scale=scale, alibi_slopes=alibi_slopes, out=out,
        cache_layout="paged", **_scales(key_cache, k_scale, v_scale),
    )  # fmt: skip


def paged_attention_v1(
    out: torch.Tensor,
    workspace_buffer: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    scale: float,
    block_tables: torch.Tensor,
    cu_query_lens: torch.Tensor | None,
    context_lens: torch.Tensor,
    max_context_len: int,
    alibi_slopes: torch.Tensor | None,
    kv_cache_dtype: str,
    kv_cache_layout: str,
    logits_soft_cap: float,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    fp8_out_scale: torch.Tensor | None = None,
    partition_size: int = 256,
    mtp: int = 1,
    sliding_window: int = 0,
) -> torch.Tensor:
    """query [tokens, heads, D] to caches [blocks, key heads, block_size, D] ("HND") or [blocks, block_size, key heads, D] ("NHD"), into
    out. Each sequence has mtp tokens, or those of cu_query_lens, at most mtp; sliding_window > 0: each token sees so many keys, including
    its own.
    """
    name = "paged_attention_v1"
    _refuse(name, fp8_out_scale=fp8_out_scale)
    _check_kind(name, kv_cache_dtype, key_cache)
    return attention_paged(
        query, key_cache, value_cache, block_tables, context_lens, cu_query_lens, mtp, scale=scale, softcap=logits_soft_cap,
        window_size=_window(sliding_window), alibi_slopes=alibi_slopes, out=out, cache_layout=_layout(name, kv_cache_layout),
        **_scales(key_cache, k_scale, v_scale),
    )  # fmt: skip


def paged_attention_ragged(
    out: torch.Tensor,
    workspace_buffer: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    scale: float,
    kv_indptr: torch.Tensor,
    kv_page_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    block_size: int,
    max_num_partitions: int,
    alibi_slopes: torch.Tensor | None,
    kv_cache_dtype: str,
    kv_cache_layout: str,
    logits_soft_cap: float,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    fp8_out_scale: torch.Tensor | None = None,
    partition_size: int = 256,
    mtp: int = 1,
) -> torch.Tensor:
    """As paged_attention_v1, with lists: sequence b has pages kv_page_indices[kv_indptr[b]: kv_indptr[b + 1]], the last one filled up to
    kv_last_page_lens[b].
    """
    name = "paged_attention_ragged"
    _refuse(name, fp8_out_scale=fp8_out_scale)
    _check_kind(name, kv_cache_dtype, key_cache)
    layout = _layout(name, kv_cache_layout)
    heads, size = key_cache.shape[1:3][:: 1 if layout == "hnd" else -1]
    _check_sizes(name, heads, heads, size, block_size)
    pages = kv_indptr.diff()
    lengths = ((pages - 1) * size + kv_last_page_lens) * (pages > 0)
    return attention_paged(
        query, key_cache, value_cache, kv_page_indices, lengths, None, mtp, table_starts=kv_indptr[:-1], scale=scale,
        softcap=logits_soft_cap, alibi_slopes=alibi_slopes, out=out, cache_layout=layout, **_scales(key_cache, k_scale, v_scale),
    )  # fmt: skip


def paged_attention_decode(
    output: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    attn_scale: float,
    max_seq_len: int,
    compute_type: Any,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    num_seq_partitions: int = 0,
    alibi_slopes: torch.Tensor | None = None,
) -> None:
    """query [sequences, heads, D] to caches [blocks, key heads, block_size, D], into output."""
    attention_paged(
        query, key_cache, value_cache, block_tables, seq_lens, scale=attn_scale, alibi_slopes=alibi_slopes, out=output,
        cache_layout="hnd", **_scales(key_cache, k_scale, v_scale),
    )  # fmt: skip


def chunked_prefill_paged_decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    kv_cache_dtype: str,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    alibi_slopes: torch.Tensor | None = None,
    sliding_window: int | None = None,
    sm_scale: float | None = None,
) -> None:
    """query [tokens, heads, D] to caches in paged_attention_rocm's layout, causal, into output. The new tokens' keys and values are in the
    caches, as AITER's kernel for sequences of one token requires, and are read there: `key` and `value` are ignored. sm_scale defaults to
    1 / sqrt(D), where AITER uses the number of heads as D.
    """
    _check_kind("chunked_prefill_paged_decode", kv_cache_dtype, key_cache)
    attention_paged(
        query, key_cache, value_cache, block_table, seq_lens, query_start_loc, max_query_len, scale=sm_scale,
        window_size=_window(sliding_window), alibi_slopes=alibi_slopes, out=output, cache_layout="paged",
        **_scales(key_cache, k_scale, v_scale),
    )  # fmt: skip


def context_attention_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    kv_cache_dtype: str,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    b_loc: torch.Tensor,
    b_start_loc: torch.Tensor,
    b_seq_len: torch.Tensor,
    max_input_len: int,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    alibi_slopes: torch.Tensor | None = None,
    sliding_window: int | None = None,
    sm_scale: float | None = None,
    skip_decode: bool = False,
) -> None:
    """aiter.ops.triton.pa_prefill's: q [tokens, heads, D] to the keys before the new tokens in caches in paged_attention_rocm's layout, and
    to those tokens' k and v [tokens, key heads, D], causal, into o. Sequence b has tokens b_start_loc[b] .. b_start_loc[b + 1] - 1 and
    b_seq_len[b] keys, including the new ones. Three launches: attention_paged, attention_varlen and attention_merge.

    If the caches contain the new keys already, chunked_prefill_paged_decode is one launch, with windows and slopes. The function of this
    name in aiter.ops.triton.prefill_attention, without a cache, is hipkittens.attention_varlen.
    """
    name = "context_attention_fwd"
    _check_kind(name, kv_cache_dtype, k_cache)
    instead = "write the new keys into the caches, and call chunked_prefill_paged_decode"
    if alibi_slopes is not None:
        refuse(name, "alibi_slopes", "given", instead)
    if _window(sliding_window) != (-1, -1):
        refuse(name, "sliding_window", sliding_window, instead)
    if skip_decode:
        refuse(name, "skip_decode", skip_decode, "pass False, which attends to sequences of one token, too")
    check_place(name, "o", o, *q.shape)
    with torch.no_grad():
        before = attention_paged(
            q, k_cache, v_cache, b_loc, b_seq_len - b_start_loc.diff(), b_start_loc, max_input_len, causal=False, scale=sm_scale,
            cache_layout="paged", return_lse=True, **_scales(k_cache, k_scale, v_scale),
        )  # fmt: skip
        new = attention_varlen(
            q,
            k,
            v,
            b_start_loc,
            b_start_loc,
            max_input_len,
            max_input_len,
            causal=True,
            scale=sm_scale,
            return_lse=True,
        )
        out, _ = attention_merge(*before, *new)
    put(name, "o", o, out)


def _scales(cache: torch.Tensor, k_scale: Any, v_scale: Any) -> dict[str, Any]:
    return {"k_scale": k_scale, "v_scale": v_scale} if cache.dtype.itemsize == 1 else {}


def _window(keys: int | None) -> tuple[int, int]:
    return (keys - 1, 0) if keys and keys > 0 else (-1, -1)


def _layout(name: str, layout: str) -> str:
    if layout not in ("HND", "NHD"):
        raise ValueError(f"hipkittens.aiter.{name}: kv_cache_layout is {layout!r}; allowed: 'HND', 'NHD'")
    return layout.lower()


def _check_kind(name: str, kind: str, cache: torch.Tensor) -> None:
    if kind not in ("auto", "fp8", "fp8_e4m3", "int8"):
        refuse(name, "kv_cache_dtype", repr(kind), "allowed: 'auto', 'fp8', 'fp8_e4m3', 'int8'")
    given = "auto" if cache.dtype.itemsize > 1 else "int8" if cache.dtype == torch.int8 else "fp8"
    if given != kind and not kind.startswith(given):
        raise TypeError(
            f"hipkittens.aiter.{name}: kv_cache_dtype is {kind!r} and the caches are {cache.dtype}; pass {given!r} for those"
        )


def _check_sizes(name: str, heads: int, given_heads: int, size: int, given_size: int) -> None:
    if (heads, size) != (given_heads, given_size):
        raise ValueError(
            f"hipkittens.aiter.{name}: num_kv_heads is {given_heads} and block_size {given_size}; the caches have {heads} heads and "
            f"{size} keys in a block"
        )


def _refuse(name: str, **tensors: object) -> None:
    for argument, value in tensors.items():
        if value is not None:
            refuse(name, argument, "given", "pass None, with 16-bit queries and results")
