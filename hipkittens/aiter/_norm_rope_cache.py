# SPDX-License-Identifier: MIT
"""Heads that are normalized, rotated and written to caches, by the names of AITER's main branch.

Where a single launch does it, everything is float32 from the arguments to the one rounding of a result. Tokens with a negative slot are not
written, but are in the results.
"""

from __future__ import annotations

import torch

from .. import (
    QuantSpec,
    cache_write,
    indexer_cache_write,
    layer_norm,
    qkv_rotary,
    quantize,
    rms_norm,
    rotary_qk,
)
from ._cache import counted_scale, has_powers_of_two, scales_of_tokens
from ._results import check_place, put, put_codes, refuse
from ._rope import rows_of
from ._rope_cache import scale_of


def fused_qkv_split_qk_norm_rope_cache(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    qh: int,
    kvh: int,
    head_dim: int,
    is_neox: bool = True,
    offsets: torch.Tensor | None = None,
    reuse_freqs_front_part: bool = True,
    attn_output_gate: bool = False,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    eps: float = 1e-5,
    gated_qkv_layout: str = "interleaved",
    kv_cache_layout: str = "HND",
) -> tuple[torch.Tensor, ...]:
    """(q, k, v), or with attn_output_gate (q, gate, k, v), each [tokens, heads, head_dim], of qkv [tokens, columns]: consecutive heads of
    q, of k and of v. Those of q and k are normalized by 1 + q_weight and 1 + k_weight and rotated by the row of positions + offsets, and
    k and v are written to caches [blocks, kvh, block_size, head_dim], or with "NHD" [blocks, block_size, kvh, head_dim]: one launch, and
    a copy of the gate.

    With attn_output_gate qkv has as many heads of gates as of queries: each after its query ("interleaved"), or all after the queries
    ("blocked"). k_scale and v_scale are for 8-bit caches, and values are clamped.
    """
    name = "fused_qkv_split_qk_norm_rope_cache"
    where, layout = f"hipkittens.aiter.{name}", kv_cache_layout.lower()
    if layout not in ("hnd", "nhd"):
        raise ValueError(f"{where}: kv_cache_layout is {kv_cache_layout!r}; allowed: 'HND', 'NHD'")
    if gated_qkv_layout not in ("interleaved", "blocked"):
        raise ValueError(
            f"{where}: gated_qkv_layout is {gated_qkv_layout!r}; allowed: 'interleaved', 'blocked'"
        )
    queries = qh * (2 if attn_output_gate else 1)
    columns = (queries + 2 * kvh) * head_dim
    if qkv.dim() != 2 or qkv.shape[1] != columns:
        raise ValueError(
            f"{where}: qkv has shape {tuple(qkv.shape)}; {queries} heads of queries{' and gates' if attn_output_gate else ''} and twice "
            f"{kvh} of {head_dim} features need (tokens, {columns})"
        )
    q, k, v = qkv.unflatten(1, (-1, head_dim)).split((queries, kvh, kvh), 1)
    gate = None
    if attn_output_gate:
        pairs = q.unflatten(1, (qh, 2) if gated_qkv_layout == "interleaved" else (2, qh))
        q, gate = pairs.unbind(2 if gated_qkv_layout == "interleaved" else 1)
    scales = [
        scale_of(name, scale_name, scale, cache_name, cache)
        for scale_name, scale, cache_name, cache in (
            ("k_scale", k_scale, "key_cache", key_cache),
            ("v_scale", v_scale, "value_cache", value_cache),
        )
    ]
    cos, sin = (rows_of(name, table) for table in (cos, sin))
    q, k, v = qkv_rotary(
        (q, k, v), cos, sin, qh, kvh, q_weight=1 + q_weight.float(), k_weight=1 + k_weight.float(), eps=eps,
        interleaved=not is_neox, positions=positions, offsets=offsets, full_tables=not reuse_freqs_front_part,
        key_cache=key_cache, value_cache=value_cache, slots=slot_mapping, layout=layout, k_scale=scales[0], v_scale=scales[1],
    )  # fmt: skip
    return (q, k, v) if gate is None else (q, gate.contiguous(), k, v)


def fused_qk_norm_rope_cache_quant_shuffle(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    num_heads_q: int,
    num_heads_k: int,
    num_heads_v: int,
    head_dim: int,
    eps: float,
    qw: torch.Tensor,
    kw: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
    pos_ids: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> None:
    """q and k [tokens, heads * head_dim] or [tokens, heads, head_dim], normalized by qw and kw over each head and rotated, in place; k and
    v into caches as in reshape_and_cache, v also as in its asm_layout. A row of cos_sin_cache contains the cosines of all pairs, then
    their sines.

    kv_cache_dtype "auto" is one launch and copies of q and k. "fp8" and "int8" have a scale for each token and head, which is written to
    k_scale and v_scale [blocks, heads, block_size]: two norms, which round, a rotation, and `hipkittens.cache_write`. Heads of zeros have
    scale 1.
    """
    name = "fused_qk_norm_rope_cache_quant_shuffle"
    where = f"hipkittens.aiter.{name}"
    if num_heads_k != num_heads_v:
        raise ValueError(
            f"{where}: num_heads_k is {num_heads_k} and num_heads_v {num_heads_v}; both must be the same"
        )
    heads = []
    for heads_name, rows, count in (("q", q, num_heads_q), ("k", k, num_heads_k), ("v", v, num_heads_v)):
        if tuple(rows.shape) not in ((len(rows), count * head_dim), (len(rows), count, head_dim)):
            raise ValueError(
                f"{where}: {heads_name} has shape {tuple(rows.shape)}; it must be (tokens, {count * head_dim}) or (tokens, {count}, "
                f"{head_dim})"
            )
        heads.append(
            rows.view(len(rows), count, head_dim) if rows.dim() == 3 else rows.unflatten(1, (count, head_dim))
        )
    counted_scale(name, kv_cache_dtype, "k_cache", k_cache, k_scale)
    cos, sin = rows_of(name, cos_sin_cache).chunk(2, -1)
    options = {"interleaved": not is_neox_style, "positions": pos_ids}
    layout = "asm" if v_cache.dim() == 5 else "paged"
    if kv_cache_dtype == "auto":
        q_out, k_out, _ = qkv_rotary(
            tuple(heads), cos, sin, num_heads_q, num_heads_k, q_weight=qw, k_weight=kw, eps=eps, **options,
            key_cache=k_cache, value_cache=v_cache, slots=slot_mapping, layout=layout,
        )  # fmt: skip
    else:
        scales = scales_of_tokens(name, ("k_scale", "v_scale"), (k_scale, v_scale), k_cache, True)
        normal = [rms_norm(rows, weight, eps=eps) for rows, weight in zip(heads[:2], (qw, kw), strict=True)]
        q_out, k_out = rotary_qk(*normal, cos, sin, **options, inplace=True)
        cache_write(
            k_out,
            heads[2],
            k_cache,
            v_cache,
            slot_mapping,
            layout=layout,
            key_scales=scales[0],
            value_scales=scales[1],
        )
    put(name, "q", heads[0], q_out)
    put(name, "k", heads[1], k_out)


def indexer_qk_rope_quant_and_cache(
    q: torch.Tensor,
    q_out: torch.Tensor,
    weights: torch.Tensor,
    weights_out: torch.Tensor,
    k: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    positions: torch.Tensor,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor,
    epsilon: float,
    quant_block_size: int,
    scale_fmt: str,
    weights_scale: float,
    preshuffle: bool = False,
    is_neox: bool = True,
) -> None:
    """For the first slot_mapping.shape[0] tokens: the first features of q [tokens, heads, features] are rotated and quantized into q_out
    with a scale for each head; weights [tokens, heads] times these scales and weights_scale go into weights_out, float32; k [tokens,
    features] goes through a layer norm, is rotated likewise, and written to kv_cache by indexer_k_quant_and_cache. The norm and the
    rotation round.

    Launches: a norm, a rotation, two that quantize, and PyTorch's product of the weights. A head's scale is its largest magnitude, at least
    1e-10, over the largest code; with "ue8m0" rounded up to a power of two, and 2 ** -127 for zeros.
    """
    name = "indexer_qk_rope_quant_and_cache"
    where = f"hipkittens.aiter.{name}"
    if preshuffle:
        refuse(
            name,
            "preshuffle",
            preshuffle,
            "pass False; hipkittens.mqa_logits_paged reads slots one after the other",
        )
    powers = has_powers_of_two(name, scale_fmt)
    tokens = min(len(k), len(slot_mapping))
    if q.dim() != 3 or k.dim() != 2 or len(q) < tokens or q.shape[2] != k.shape[1]:
        raise ValueError(
            f"{where}: q has shape {tuple(q.shape)} and k {tuple(k.shape)}; they must be (tokens, heads, features) and (tokens, features)"
        )
    for place, into, sizes in (
        ("q_out", q_out, (tokens, *q.shape[1:])),
        ("weights", weights, (tokens, q.shape[1])),
        ("weights_out", weights_out, (tokens, q.shape[1])),
    ):
        check_place(name, place, into[:tokens], *sizes)
    normal = layer_norm(k[:tokens], norm_weight, norm_bias, eps=epsilon)
    cos, sin = (rows_of(name, table) for table in (cos_cache, sin_cache))
    turned, key = rotary_qk(
        q[:tokens], normal[:, None], cos, sin, positions=positions[:tokens], interleaved=not is_neox
    )
    spec = QuantSpec("fp8", scale_rule="round_up") if powers else QuantSpec("fp8", floor=1e-10)
    indexer_cache_write(
        key[:, 0], kv_cache, slot_mapping[:tokens], group=quant_block_size, powers_of_two=powers
    )
    codes, scales = quantize(turned, spec)
    put_codes(name, "q_out", q_out[:tokens], codes)
    put(
        name,
        "weights_out",
        weights_out[:tokens],
        weights[:tokens].float() * scales.squeeze(-1) * weights_scale,
    )
