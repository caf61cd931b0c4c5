# SPDX-License-Identifier: MIT
"""flash-attn 2's functions, which forward their arguments to this package's operations."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from ..attention import attention, attention_varlen
from ..rotary import rotary
from .paged_cache import attention_of_pages, attention_with_cache


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """hipkittens.attention of q (B, N, H, D), k (B, N_k, H_k, D) and v (B, N_k, H_k, D_v).

    With return_attn_probs the result is (out, softmax_lse, S_dmask): the LSE is float32 (B, H, N), and S_dmask, which flash-attn fills only
    with dropout, is empty.
    """
    where = "flash_attn_func"
    _refuse_dropout_pattern(where, return_attn_probs, dropout_p)
    _check_rank(where, 4, q=q, k=k, v=v)
    q, k, v, size, softmax_scale = _whole_chunks(q, k, v, softmax_scale)
    out, lse = attention(
        q,
        k,
        v,
        causal=causal,
        scale=softmax_scale,
        window_size=window_size,
        dropout_p=dropout_p,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=bool(deterministic),
        return_lse=True,
    )
    return _results(out, lse, size, return_attn_probs)


def flash_attn_kvpacked_func(
    q,
    kv,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash_attn_func of q (B, N, H, D) and kv (B, N_k, 2, H_k, D)."""
    k, v = _unpack("flash_attn_kvpacked_func", "kv", kv, 5, 2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_qkvpacked_func(
    qkv,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash_attn_func of qkv (B, N, 3, H, D)."""
    q, k, v = _unpack("flash_attn_qkvpacked_func", "qkv", qkv, 5, 3)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """hipkittens.attention_varlen of q (T, H, D), k and v (T_k, H_k, D); the LSE is float32 (H, T).

    With block_table it is hipkittens.attention_paged with caches k and v (blocks, block_size, H_k, D), without a gradient.
    """
    where = "flash_attn_varlen_func"
    _refuse_dropout_pattern(where, return_attn_probs, dropout_p)
    if block_table is not None:
        if dropout_p != 0.0:
            raise NotImplementedError(
                f"hipkittens.flash_attn.{where}: dropout_p is {dropout_p} with block_table; no kernel drops weights of a cache, "
                "pass 0.0"
            )
        options = (softmax_scale, causal, window_size, softcap, alibi_slopes, block_table)
        out, lse = attention_of_pages(
            f"hipkittens.flash_attn.{where}", q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, *options
        )
        return _results(out, lse, out.shape[-1], return_attn_probs)
    _check_rank(where, 3, q=q, k=k, v=v)
    q, k, v, size, softmax_scale = _whole_chunks(q, k, v, softmax_scale)
    out, lse = attention_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        causal=causal,
        scale=softmax_scale,
        window_size=window_size,
        dropout_p=dropout_p,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=bool(deterministic),
        return_lse=True,
    )
    return _results(out, lse, size, return_attn_probs)


def flash_attn_varlen_kvpacked_func(
    q,
    kv,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash_attn_varlen_func of q (T, H, D) and kv (T_k, 2, H_k, D)."""
    k, v = _unpack("flash_attn_varlen_kvpacked_func", "kv", kv, 4, 2)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_qkvpacked_func(
    qkv,
    cu_seqlens,
    max_seqlen,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """flash_attn_varlen_func of qkv (T, 3, H, D)."""
    q, k, v = _unpack("flash_attn_varlen_qkvpacked_func", "qkv", qkv, 4, 3)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """Attention to a cache of keys and values. As in flash-attn there is no gradient.

    k_cache, v_cache  (B, S, H_k, D), or with block_table, int32 (B, pages per sequence), (pages, page size, H_k, D), any page size.
                      cache_batch_idx selects rows of caches with more than B rows
    cache_leftpad     int32 (B,), the number of padding keys at the beginning of each row, for caches without pages. Positions count from
                      the beginning of the row: cache_seqlens includes the padding, and so does the rotation
    cache_seqlens     the number of keys of each sequence in the caches: int32 (B,), or an integer for all; None: the caches are full

    k and v are first written into the caches after these keys. With rotary_cos and rotary_sin, k is rotated before that, and so is q: with
    a causal mask or a window each query by its own position, otherwise all by cache_seqlens.

    Calls with a tensor of lengths, pages, cache_batch_idx, cache_leftpad, softcap, alibi_slopes or a number of splits use
    hipkittens.attention_paged. If D is not 64, 128 or 256, each such call copies the pages of the batch, padded with zeros, and a warning
    is issued once. All other calls use hipkittens.attention.
    """
    where = "hipkittens.flash_attn.flash_attn_with_kvcache"
    if (k is None) != (v is None):
        raise ValueError(f"{where}: k and v go together, and one of them is None")
    if k is None and (rotary_cos is not None or rotary_sin is not None):
        raise ValueError(f"{where}: rotary_cos and rotary_sin need k and v")
    if k is not None and cache_seqlens is None:
        raise ValueError(f"{where}: k needs cache_seqlens, the place in the caches it goes to")
    paged = (block_table, cache_batch_idx, cache_leftpad, alibi_slopes)
    if (
        any(value is not None for value in paged)
        or isinstance(cache_seqlens, torch.Tensor)
        or softcap > 0.0
        or num_splits not in (0, 1)
        or k_cache.shape[-1] % 8 != 0
    ):
        with torch.no_grad():
            out, lse = attention_with_cache(
                where, q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad,
                block_table, softmax_scale, causal, window_size, softcap, bool(rotary_interleaved), alibi_slopes, num_splits,
            )  # fmt: skip
        return (out, lse) if return_softmax_lse else out
    held = k_cache.shape[1] if cache_seqlens is None else int(cache_seqlens)
    end = held + (0 if k is None else k.shape[1])
    if held < 0 or end > k_cache.shape[1]:
        raise ValueError(
            f"{where}: cache_seqlens is {held} and {end - held} keys are new; the caches hold {k_cache.shape[1]}"
        )
    with torch.no_grad():
        if rotary_cos is not None:
            turned = {"interleaved": bool(rotary_interleaved), "offset": held}
            k = rotary(k, rotary_cos, rotary_sin, **turned)
            if causal or tuple(window_size) != (-1, -1):
                q = rotary(q, rotary_cos, rotary_sin, **turned)
            else:
                one_place = torch.full((q.shape[1],), held, dtype=torch.int32, device=q.device)
                q = rotary(q, rotary_cos, rotary_sin, interleaved=turned["interleaved"], positions=one_place)
        if k is not None:
            k_cache[:, held:end] = k
            v_cache[:, held:end] = v
        out, lse = attention(
            q,
            k_cache[:, :end],
            v_cache[:, :end],
            causal=causal,
            scale=softmax_scale,
            window_size=window_size,
            return_lse=True,
        )
    return (out, lse) if return_softmax_lse else out


def _refuse_dropout_pattern(where: str, return_attn_probs: bool, dropout_p: float) -> None:
    if return_attn_probs and dropout_p > 0.0:
        raise NotImplementedError(
            f"hipkittens.flash_attn.{where}: return_attn_probs with dropout_p = {dropout_p}: no kernel writes S_dmask; "
            "hipkittens.attention(..., return_lse=True) gives the LSE alone"
        )


def _check_rank(where: str, rank: int, **tensors) -> None:
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor) or value.dim() != rank:
            found = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            form = "(batch, tokens, heads, features)" if rank == 4 else "(tokens, heads, features)"
            raise ValueError(f"hipkittens.flash_attn.{where}: {name} is {found}; it must be {form}")


def _unpack(where: str, name: str, packed, rank: int, parts: int):
    """The parts as views; their gradients form one tensor in the packed layout."""
    if not isinstance(packed, torch.Tensor) or packed.dim() != rank or packed.shape[-3] != parts:
        found = tuple(packed.shape) if isinstance(packed, torch.Tensor) else type(packed).__name__
        form = ("batch, " if rank == 5 else "") + f"tokens, {parts}, heads, features"
        raise ValueError(f"hipkittens.flash_attn.{where}: {name} is {found}; it must be ({form})")
    return packed.unbind(-3)


def _whole_chunks(q, k, v, softmax_scale):
    """Heads of any size, padded with zeros to a multiple of 8 as in flash-attn; also v's original size, and the scale for q's."""
    size = v.shape[-1]
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    if q.shape[-1] == k.shape[-1]:
        q, k, v = (
            pad(tensor, (0, -tensor.shape[-1] % 8)) if tensor.shape[-1] % 8 else tensor
            for tensor in (q, k, v)
        )
    return q, k, v, size, scale


def _results(out, lse, size: int, return_attn_probs: bool):
    out = out[..., :size] if out.shape[-1] != size else out
    return (out, lse, out.new_empty(0)) if return_attn_probs else out
