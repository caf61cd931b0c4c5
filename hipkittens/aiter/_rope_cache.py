# SPDX-License-Identifier: MIT
"""Rotations that concatenate heads and write caches, by AITER's names.

cos and sin have a column for each pair, or for each rotated feature. Tokens with a negative slot are not written but are in the results,
where AITER does not write k_out.
"""

from __future__ import annotations

import torch

from .. import mla_cache_write, mla_rotary, rotary_cache_write
from ._gemm_batched import (
    batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant,
    batched_gemm_a16wfp4,
)
from ._results import check_place, placed, put, put_codes, refuse
from ._rope import rows_of


def fused_qk_rope_cat(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    k_nope: torch.Tensor,
    k_pe: torch.Tensor,
    pos: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    is_neox: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q, k) [tokens, heads, d1 + d2] of q_nope, k_nope [.., d1] and q_pe, k_pe [.., d2], which are rotated by the row of pos."""
    options = _rotation("fused_qk_rope_cat", pos, cos, sin, is_neox, q_pe)
    return mla_rotary(q_nope, q_pe, k_nope, k_pe, **options)


def fused_qk_rope_cat_and_cache_mla(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    k_nope: torch.Tensor,
    k_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    pos: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_scale: torch.Tensor,
    is_neox: bool,
    num_decode_toks_for_zeros: int = 0,
    apply_scale: bool = True,
    q_out: torch.Tensor | None = None,
    decode_q_pe_out: torch.Tensor | None = None,
    k_pe_out: torch.Tensor | None = None,
    q_out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(q, q_pe of the first num_decode_toks_for_zeros tokens, k_pe, as many zeros in q_nope's heads), rotated; k into kv_cache [slots,
    heads, d1 + d2], in k's dtype or 8-bit floats of the target, for which k_scale is used: with apply_scale and any other cache it is
    not supported.

    q_nope and q_pe may have fewer tokens than k: k's others are written as they are, in a separate launch. q of 8-bit floats (q_out, or
    q_out_dtype) is clamped to the largest representable value.
    """
    name = "fused_qk_rope_cat_and_cache_mla"
    scale = scale_of(name, "k_scale", k_scale if apply_scale else None, "kv_cache", kv_cache)
    dtype = q_out_dtype if q_out is None else q_out.dtype
    results = _latents(
        name, q_nope, q_pe, k_nope, k_pe, kv_cache, slot_mapping, pos, cos, sin, scale, is_neox, num_decode_toks_for_zeros, dtype,
        {"q_out": q_out, "decode_q_pe_out": decode_q_pe_out, "k_pe_out": k_pe_out},
    )  # fmt: skip
    return results


def fused_qk_rope_concat_and_cache_mla(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    q_out: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None,
    q_scale: torch.Tensor | None,
    positions: torch.Tensor,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor,
    is_neox: bool,
    is_nope_first: bool,
) -> None:
    """q_nope and q_pe, rotated, into q_out [tokens, heads, latent + rotary], kv_c and k_pe likewise into kv_cache [blocks, block_size,
    (heads,) latent + rotary]. k_scale is used for caches of 8-bit floats and q_scale for such a q_out, round(x * (1 / scale)).
    """
    name = "fused_qk_rope_concat_and_cache_mla"
    heads, features = q_nope.shape[-2], q_nope.shape[-1] + q_pe.shape[-1]
    check_place(name, "q_out", q_out, *q_nope.shape[:-2], heads, features)
    codes = q_out.dtype if q_out.dtype.itemsize == 1 else None
    options = _rotation(name, positions, cos_cache, sin_cache, is_neox, q_pe)
    q, _ = mla_rotary(
        q_nope, q_pe, kv_c, k_pe, **options, nope_first=bool(is_nope_first), kv_cache=kv_cache, slots=slot_mapping,
        scale=k_scale if kv_cache.dtype.itemsize == 1 else None, q_dtype=codes, q_scale=q_scale if codes else None,
    )  # fmt: skip
    (put_codes if codes else put)(name, "q_out", q_out, q)


def fused_qk_rope_reshape_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    pos: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    is_neox: bool,
    flash_layout: bool,
    apply_scale: bool = True,
    offs: torch.Tensor | None = None,
    q_out: torch.Tensor | None = None,
    k_out: torch.Tensor | None = None,
    output_zeros: bool = True,
    zeros_out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """(q, k, key_cache, value_cache), and with output_zeros zeros like q: q and k [tokens, heads, features] rotated by the row of pos +
    offs, k and v in caches as in reshape_and_cache_flash, or reshape_and_cache without flash_layout. Scales as in
    fused_qk_rope_cat_and_cache_mla. Slots past the last token are ignored.
    """
    name = "fused_qk_rope_reshape_and_cache"
    scales = [
        scale_of(name, scale_name, scale if apply_scale else None, cache_name, cache)
        for scale_name, scale, cache_name, cache in (
            ("k_scale", k_scale, "key_cache", key_cache),
            ("v_scale", v_scale, "value_cache", value_cache),
        )
    ]
    for place, into, like in (("q_out", q_out, q), ("k_out", k_out, k), ("zeros_out", zeros_out, q)):
        check_place(name, place, into, *like.shape)
    layout = "nhd" if flash_layout else "asm" if value_cache.dim() == 5 else "paged"
    turned = rotary_cache_write(
        q, k, v, **_rotation(name, pos, cos, sin, is_neox, q), offsets=offs, key_cache=key_cache, value_cache=value_cache,
        slots=slot_mapping[: q.shape[0]], layout=layout, k_scale=scales[0], v_scale=scales[1],
    )  # fmt: skip
    results = (
        placed(name, "q_out", q_out, turned[0]),
        placed(name, "k_out", k_out, turned[1]),
        key_cache,
        value_cache,
    )
    if not output_zeros:
        return results
    return *results, torch.zeros_like(q) if zeros_out is None else zeros_out.zero_()


def fused_fp8_bmm_rope_cat_and_cache_mla(
    q_nope: torch.Tensor,
    w_k: torch.Tensor,
    w_k_scale: torch.Tensor,
    q_pe: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    group_size: int = 128,
    transpose_bm: bool = True,
    config: dict | None = None,
    k_scale: torch.Tensor | None = None,
    is_neox: bool = False,
    q_out_dtype: torch.dtype | None = torch.bfloat16,
    num_decode_toks_for_zeros: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant of q_nope [heads, tokens, p], which is quantized first, and
    fused_qk_rope_cat_and_cache_mla of its result: three launches. transpose_bm False, where AITER puts heads first and cannot concatenate
    them, is not supported. config only chooses among AITER's kernels.
    """
    name = "fused_fp8_bmm_rope_cat_and_cache_mla"
    product = batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant
    _check_joins(name, transpose_bm)
    latent = product(q_nope, w_k, w_k_scale, group_size, dtype=q_pe.dtype, transpose_bm=True)
    scale = scale_of(name, "k_scale", k_scale, "kv_cache", kv_cache)
    return _latents(name, latent, q_pe, k_nope, k_rope, kv_cache, slot_mapping, positions, cos, sin, scale, is_neox,
                    num_decode_toks_for_zeros, q_out_dtype)  # fmt: skip


def fused_fp4_bmm_rope_cat_and_cache_mla(
    q_nope: torch.Tensor,
    w_k: torch.Tensor,
    w_k_scale: torch.Tensor,
    q_pe: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    y: torch.Tensor | None = None,
    transpose_bm: bool = True,
    prequant: bool = True,
    y_scale: torch.Tensor | None = None,
    config: str | None = None,
    k_scale: torch.Tensor | None = None,
    is_neox: bool = False,
    q_out_dtype: torch.dtype | None = None,
    num_decode_toks_for_zeros: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """fused_fp8_bmm_rope_cat_and_cache_mla with the product of batched_gemm_a16wfp4: a launch for each head. y receives the product, and
    y_scale divides it.
    """
    name = "fused_fp4_bmm_rope_cat_and_cache_mla"
    _check_joins(name, transpose_bm)
    latent = batched_gemm_a16wfp4(
        q_nope, w_k, w_k_scale, q_pe.dtype, y, transpose_bm=True, prequant=prequant, y_scale=y_scale
    )
    scale = scale_of(name, "k_scale", k_scale, "kv_cache", kv_cache)
    return _latents(name, latent.to(q_pe.dtype), q_pe, k_nope, k_rope, kv_cache, slot_mapping, positions, cos, sin, scale,
                    is_neox, num_decode_toks_for_zeros, q_out_dtype)  # fmt: skip


def _latents(
    name,
    q_nope,
    q_pe,
    k_nope,
    k_pe,
    kv_cache,
    slots,
    pos,
    cos,
    sin,
    scale,
    is_neox,
    zeros,
    dtype,
    places=None,
):
    """AITER's four results."""
    where, tokens = f"hipkittens.aiter.{name}", q_nope.shape[0]
    if not tokens <= slots.shape[0] <= k_nope.shape[0]:
        raise ValueError(
            f"{where}: slot_mapping has {slots.shape[0]} slots for {tokens} tokens of q and {k_nope.shape[0]} of k; it has one for each "
            "of q's, and no more than k has"
        )
    if not 0 <= zeros <= tokens:
        raise ValueError(
            f"{where}: num_decode_toks_for_zeros is {zeros}; 0 to {tokens}, the tokens of q, are allowed"
        )
    places = places or {}
    heads, nope, rotary = q_nope.shape[1], q_nope.shape[2], q_pe.shape[2]
    check_place(name, "q_out", places.get("q_out"), tokens, heads, nope + rotary)
    check_place(name, "decode_q_pe_out", places.get("decode_q_pe_out"), zeros, heads, rotary)
    check_place(name, "k_pe_out", places.get("k_pe_out"), *k_pe.shape)
    codes = dtype if dtype is not None and dtype.itemsize == 1 else None
    options = _rotation(name, pos[:tokens], cos, sin, is_neox, q_pe)
    cache = kv_cache.unsqueeze(1)  # blocks of one slot
    q, k = mla_rotary(
        q_nope, q_pe, k_nope[:tokens], k_pe[:tokens], **options, kv_cache=cache, slots=slots[:tokens], scale=scale, q_dtype=codes
    )  # fmt: skip
    for head in range(k_nope.shape[1] if slots.shape[0] > tokens else 0):
        rest = slice(tokens, slots.shape[0])
        mla_cache_write(k_nope[rest, head], k_pe[rest, head], cache[:, :, head], slots[rest], scale=scale)
    turned = torch.cat((k[..., nope:], k_pe[tokens:]))
    if codes and zeros:
        first, _ = mla_rotary(
            q_nope[:zeros], q_pe[:zeros], k_nope[:zeros], k_pe[:zeros], **options | {"positions": pos[:zeros]}
        )
    else:
        first = q
    decode = first[:zeros, :, nope:].contiguous()
    if codes:
        if places.get("q_out") is not None:
            put_codes(name, "q_out", places["q_out"], q)
            q = places["q_out"]
    else:
        q = placed(name, "q_out", places.get("q_out"), q if dtype is None else q.to(dtype))
    return (
        q,
        placed(name, "decode_q_pe_out", places.get("decode_q_pe_out"), decode),
        placed(name, "k_pe_out", places.get("k_pe_out"), turned),
        q_nope.new_zeros(zeros, heads, nope),
    )


def _rotation(name, positions, cos, sin, is_neox, q_pe):
    cos, sin = (rows_of(name, table) for table in (cos, sin))
    full = cos.shape[-1] == q_pe.shape[-1]
    return {"cos": cos, "sin": sin, "positions": positions, "interleaved": not is_neox, "full_tables": full}


def scale_of(name, scale_name, scale, cache_name, cache):
    """The scale as a tensor, or None; refused for a 16-bit cache."""
    if scale is None:
        return None
    if cache.dtype.itemsize != 1:
        refuse(
            name, scale_name, f"given for {cache_name} of {cache.dtype}", "pass None, or apply_scale=False where there is such an argument"
        )  # fmt: skip
    return scale if isinstance(scale, torch.Tensor) else torch.tensor([float(scale)], device=cache.device)


def _check_joins(name, transpose_bm) -> None:
    if not transpose_bm:
        refuse(name, "transpose_bm", transpose_bm, "allowed: True")
