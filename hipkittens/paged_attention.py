# SPDX-License-Identifier: MIT
"""Attention to a paged cache of keys and values: decoding, several tokens per step, and chunked prefill."""

from __future__ import annotations

from typing import Literal, overload

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
from ._hidden_keys import distances, hidden_keys
from ._paged_sequences import (
    DTYPES,
    check_cache,
    check_flag_and_output,
    check_indices,
    check_rows,
    check_sequences,
    check_values,
    scale_factor,
    values_are_known,
)
from ._score_terms import check_score_terms, log_sum_with_sinks, with_terms
from .attention import scale_or_default, window_sides
from .cache import LAYOUTS, Layout, as_operand
from .quantization import dtype_of

HEAD_SIZES = (64, 128, 256)

_SHAPES = {
    "nhd": "(blocks, block_size, key heads, D)",
    "hnd": "(blocks, key heads, block_size, D)",
    "paged": "(blocks, key heads, D / x, block_size, x) with a v_cache (blocks, key heads, D, block_size)",
    "asm": "(blocks, key heads, D / x, block_size, x) with a v_cache (blocks, key heads, block_size / x, D, x)",
}
_GROUPED = ("paged", "asm")
# Keys of a tile: splits consist of whole tiles.
TILE_KEYS = 32
LARGEST_PLANNED_SPLITS = 1 << 16


@overload
def attention_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int = 1,
    *,
    causal: bool = True,
    table_starts: torch.Tensor | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
    cache_layout: Layout = "nhd",
    num_splits: int = 0,
    plan: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def attention_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int = 1,
    *,
    causal: bool = True,
    table_starts: torch.Tensor | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
    cache_layout: Layout = "nhd",
    num_splits: int = 0,
    plan: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def attention_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int = 1,
    *,
    causal: bool = True,
    table_starts: torch.Tensor | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
    cache_layout: Layout = "nhd",
    num_splits: int = 0,
    plan: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    return_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def attention_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int = 1,
    *,
    causal: bool = True,
    table_starts: torch.Tensor | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
    cache_layout: Layout = "nhd",
    num_splits: int = 0,
    plan: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of new tokens to the keys and values of their sequences in a paged cache. The result has q's shape and dtype.

    - `q`: (T, H, D), D 64, 128 or 256: the new tokens of all sequences, packed.
    - `k_cache`, `v_cache`: both of q's dtype (bfloat16 or float16), both 8-bit floats or both int8. They already contain the keys and
      values of the new tokens. Shapes by `cache_layout`, with x elements in 16 bytes:
      "nhd" (blocks, block_size, H_k, D) for both;
      "hnd" (blocks, H_k, block_size, D) for both;
      "paged" (blocks, H_k, D / x, block_size, x) and v_cache (blocks, H_k, D, block_size);
      "asm" as "paged", with v_cache (blocks, H_k, block_size / x, D, x).
      block_size is arbitrary for the first two, a multiple of 8 for "paged", and a multiple of x for "asm". H is a multiple of H_k,
      and query head h reads key head h // (H / H_k).
    - `block_table`: int32 (B, blocks per sequence). Key j of sequence b is in slot j % block_size of block
      block_table[b, j // block_size]. Entries for blocks without a visible key are never read.
    - `table_starts`: int32 (B,). If passed, block_table is one-dimensional, the concatenated block lists of all sequences, and the list
      of sequence b begins at table_starts[b]: the format of AITER and FlashInfer, kv_indices with kv_indptr[:-1].
    - `seqused_k`: int32 (B,), the number of keys of each sequence, including those of its new tokens. Keys past it are never used, even
      if they are NaN.
    - `cu_seqlens_q`: int32 (B + 1,). Sequence b has rows cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1 of q. Rows past the last end belong
      to no sequence, and their results are not written. None: every sequence has max_seqlen_q rows.
    - `max_seqlen_q`: at least the largest number of rows of one sequence; it determines the size of the launch.
    - `causal`: token t of n_q is aligned with key seqused_k - n_q + t, and the keys after that position are masked.
    - `window_size`: (left, right); keys more than `left` before or `right` after the token's position are masked. A negative number is
      no limit. A token for which every key is masked gives 0.
    - `scale`: 1 / sqrt(D) by default.
    - `softcap`: if > 0, each scaled score becomes softcap * tanh(score / softcap).
    - `alibi_slopes`: float32 (H,) or (B, H). Slope times the distance of a key from the token's position is then subtracted.
    - `sinks`: (H,) of any float dtype; exp(sink) is added to the softmax denominator of each row.
    - `k_scale`, `v_scale`: dequantization scales for caches of 8-bit floats or int8; None is 1. See below.
    - `num_splits`: the number of parts, up to 256, into which the keys of a sequence are split. Separate workgroups attend to the parts,
      and a second launch combines them, always in the same order. 0 chooses by the device and the shapes, never by values. With 1, a
      sequence's result is bit-identical whatever other sequences are in the batch, as long as max_seqlen_q * H / H_k stays on the same
      side of 16.
    - `plan`: the result of `attention_paged_plan`. num_splits, 1 or more, is then the number of splits of all sequences together. Splits
      are of equal size, except for the last one of each sequence. Not allowed while batch invariance is enabled.
    - `out`: a tensor of q's shape and dtype that is written and returned.
    - `return_lse`: also return the natural logarithm of each row's sum of exp(score): float32 (H, T), -inf where every key is masked.
      Sinks are not included.

    Caches of 8-bit floats contain the target's e4m3, float8_e4m3fnuz on gfx942 and float8_e4m3fn on gfx950, also as bytes (uint8).
    Quantized values are converted exactly to q's dtype and multiplied by k_scale and v_scale. These are numbers, or float32 tensors of any
    strides, which are read when the kernel runs: one element, the scale by which `cache_write` divided; (H_k,), or (B, H_k) as FA 3's
    k_descale; or, for both, one scale per key, (blocks, H_k, block_size) with any cache layout. Other libraries' per-key scales are views
    of that shape: AITER's (H_k, blocks * block_size) is .unflatten(1, (blocks, block_size)).transpose(0, 1), and
    (blocks, block_size, H_k) is .transpose(1, 2). Per-key scales of values are multiplied into the softmax weights before those are
    rounded.

    q, out and the caches need unit stride along D and rows aligned to 4 bytes; no tensor is copied, and addresses are 64-bit. Products
    and sums are float32 and rounded once.

    Not differentiable: raises ValueError where autograd would record the call. Raises TypeError or ValueError, before anything is
    launched, for arguments that no kernel supports. The values of block_table, seqused_k and cu_seqlens_q are validated on a CPU. On a GPU
    that would require a synchronization, so they are trusted.
    """
    where = "hipkittens.attention_paged"
    check_whole_number(where, "max_seqlen_q", max_seqlen_q)
    check_whole_number(where, "num_splits", num_splits)
    scale, left, right = _check(
        where, q, k_cache, v_cache, block_table, table_starts, seqused_k, cu_seqlens_q, alibi_slopes, sinks, max_seqlen_q,
        causal, scale, window_size, softcap, cache_layout, num_splits, plan,
    )  # fmt: skip
    check_flag_and_output(where, q, q.shape[-1], out, return_lse)
    block_size, key_heads = _block_size_and_heads(k_cache, cache_layout)
    key_blocks = k_cache.shape[0], block_size
    shapes = {
        "(key heads,)": (key_heads,),
        "(sequences, key heads)": (seqused_k.shape[0], key_heads),
        "(blocks, key heads, block_size)": (k_cache.shape[0], key_heads, block_size),
    }
    scale *= scale_factor(where, "k_scale", k_scale, "k_cache", k_cache, shapes)
    value_factor = scale_factor(where, "v_scale", v_scale, "v_cache", v_cache, shapes)
    if scales_by_key(k_scale) != scales_by_key(v_scale):
        raise ValueError(
            f"{where}: one of k_scale and v_scale has a number for each key; give both (blocks, key heads, block_size), "
            "expanding the other"
        )
    for name, value in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("sinks", sinks)):
        check_gets_no_gradient(where, name, value)
        if name != "sinks":
            check_rows(where, name, value)
    causal = bool(causal)
    k_scale, v_scale = (each if isinstance(each, torch.Tensor) else None for each in (k_scale, v_scale))
    if values_are_known(block_table, table_starts, seqused_k, cu_seqlens_q):
        check_values(
            where, q, key_blocks, block_table, table_starts, seqused_k, cu_seqlens_q, max_seqlen_q, left
        )
    if plan is not None and values_are_known(plan) and int(plan[-1]) > num_splits + seqused_k.shape[0]:
        raise ValueError(
            f"{where}: plan was made for more than num_splits = {num_splits} + {seqused_k.shape[0]} sequences; pass its num_splits"
        )
    if sinks is not None:
        sinks = sinks.float().contiguous()
    if alibi_slopes is not None:
        alibi_slopes = alibi_slopes.contiguous()
    if block_table.stride(-1) != 1:
        block_table = block_table.contiguous()
    if table_starts is not None:
        block_table, table_starts = block_table.unsqueeze(0), table_starts.contiguous()
    seqused_k = seqused_k.contiguous()
    cu_seqlens_q = None if cu_seqlens_q is None else cu_seqlens_q.contiguous()
    plan = None if plan is None else plan.contiguous()
    arguments = (
        q, as_operand(k_cache), as_operand(v_cache), block_table, table_starts, seqused_k, cu_seqlens_q, alibi_slopes, sinks, k_scale,
        v_scale, plan, max_seqlen_q, LAYOUTS.index(cache_layout), scale, value_factor, causal, left, right, float(softcap), num_splits,
    )  # fmt: skip
    if _backend.uses_torch():
        result, lse = paged_in_torch(*arguments)
        out = result if out is None else out.copy_(result)
    elif out is None:
        out, lse = call("attention_paged", *arguments)
    else:
        lse = call("attention_paged_into", out, *arguments)
        torch.autograd.graph.increment_version(out)
    return (out, lse) if return_lse else out


@_backend.interruptible
def attention_paged_plan(seqused_k: torch.Tensor, num_splits: int) -> torch.Tensor:
    """Divide the keys of a batch into num_splits equal parts, for `attention_paged` with the same num_splits.

    - `seqused_k`: int32 (B,), the number of keys of each sequence.
    - `num_splits`: 1 .. 65536. A part is the work of one workgroup per key head (and per 16 or 32 of its rows), so
      compute units / key heads parts occupy a device. All parts have the same number of tiles of 32 keys, whatever the lengths of the
      sequences; the last part of each sequence has the remainder.

    Returns an int32 tensor (B + 2,) on the device of seqused_k, computed there by PyTorch operations: the number of 32-key tiles per part,
    the first part of each sequence, and the total number of parts. One plan serves all layers of a step.
    """
    where = "hipkittens.attention_paged_plan"
    check_tensor(where, "seqused_k", seqused_k)
    check_indices(where, "seqused_k", seqused_k, 1, "(sequences,)", seqused_k)
    check_whole_number(where, "num_splits", num_splits)
    if not 1 <= num_splits <= LARGEST_PLANNED_SPLITS:
        raise ValueError(f"{where}: num_splits is {num_splits}; allowed: 1 .. {LARGEST_PLANNED_SPLITS}")
    tiles = (seqused_k.clamp(min=0).long() + (TILE_KEYS - 1)) // TILE_KEYS
    share = ((tiles.sum(0, keepdim=True) + (num_splits - 1)) // num_splits).clamp(min=1)
    ends = ((tiles + share - 1) // share).cumsum(0)
    return torch.cat((share, torch.zeros_like(share), ends)).to(torch.int32)


@_backend.checked_once(1, 2, 3, 4, 5, 6, 7, 8, 9, 17)
def _check(
    where: str,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    table_starts: torch.Tensor | None,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    max_seqlen_q: int,
    causal: bool,
    scale: float | None,
    window_size: tuple[int, int],
    softcap: float,
    cache_layout: Layout,
    num_splits: int,
    plan: torch.Tensor | None,
) -> tuple[float, int, int]:
    """Checks the arguments and returns the scale and both sides of the window. Raises for arguments that no kernel supports."""
    if cache_layout not in _SHAPES:
        raise ValueError(f"{where}: cache_layout is {cache_layout!r}; allowed: {', '.join(_SHAPES)}")
    check_tensor(where, "q", q)
    check_dtype_and_device(where, "q", q, DTYPES, "q", q)
    if q.dim() != 3:
        raise ValueError(f"{where}: q has shape {tuple(q.shape)}; it must be (tokens, heads, D)")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        check_cache(where, name, cache, q, (torch.int8,))
        if cache.dim() != (
            5 if (name == "k_cache" and cache_layout in _GROUPED) or cache_layout == "asm" else 4
        ):
            raise ValueError(
                f"{where}: {name} has shape {tuple(cache.shape)}; with cache_layout {cache_layout!r} it must be "
                f"{_SHAPES[cache_layout]}"
            )
    if k_cache.dtype != v_cache.dtype:
        raise TypeError(
            f"{where}: k_cache is {k_cache.dtype} and v_cache is {v_cache.dtype}; both have the same dtype"
        )
    grouped = cache_layout in _GROUPED
    if not grouped and k_cache.shape != v_cache.shape:
        raise ValueError(
            f"{where}: k_cache has shape {tuple(k_cache.shape)} and v_cache {tuple(v_cache.shape)}; both have the same"
        )
    if q.shape[2] not in HEAD_SIZES:
        raise ValueError(f"{where}: the head size of q is {q.shape[2]}; allowed: 64, 128, 256")
    head_size = k_cache.shape[2] * k_cache.shape[4] if grouped else k_cache.shape[3]
    if head_size != q.shape[2]:
        raise ValueError(f"{where}: q has head size {q.shape[2]} and k_cache {head_size}; they must be equal")
    heads = q.shape[1]
    block_size, key_heads = _block_size_and_heads(k_cache, cache_layout)
    if heads == 0 or key_heads == 0 or heads % key_heads:
        raise ValueError(
            f"{where}: q has {heads} heads and k_cache {key_heads} with cache_layout {cache_layout!r}; the first must be a "
            "multiple of the second, and neither 0"
        )
    if block_size == 0:
        raise ValueError(
            f"{where}: k_cache has shape {tuple(k_cache.shape)}; its blocks need 1 place or more"
        )
    if grouped:
        _check_groups(where, k_cache, v_cache, cache_layout)
    check_sequences(
        where,
        q,
        block_table,
        table_starts,
        seqused_k,
        cu_seqlens_q,
        max_seqlen_q,
        0 if plan is not None else num_splits,
    )
    if plan is not None:
        check_indices(where, "plan", plan, 1, "(sequences + 2,), of attention_paged_plan", q)
        if plan.shape[0] != seqused_k.shape[0] + 2 or not 1 <= num_splits <= LARGEST_PLANNED_SPLITS:
            raise ValueError(
                f"{where}: plan has {plan.shape[0]} entries and num_splits is {num_splits}; {seqused_k.shape[0]} sequences need a "
                f"plan of {seqused_k.shape[0] + 2}, and the num_splits it was made for, 1 .. {LARGEST_PLANNED_SPLITS}"
            )
    sequences = seqused_k.shape[0]
    check_score_terms(where, q, heads, sequences, sinks, softcap, alibi_slopes)
    check_flag(where, "causal", causal)
    _backend.check_device(where, "q", q)
    left, right = window_sides(where, window_size)
    return scale_or_default(where, scale, q), left, right


def paged_in_torch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    table_starts: torch.Tensor | None,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    _plan: torch.Tensor | None,
    max_seqlen_q: int,
    layout: int,
    scale: float,
    value_factor: float,
    causal: bool,
    left: int,
    right: int,
    softcap: float,
    num_splits: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference in PyTorch, one sequence at a time: in float32, or in q's dtype if that is float64. Caches of uint8 contain 8-bit
    floats of the target.
    """
    if k_cache.dtype == torch.uint8:
        codes = dtype_of("fp8", q.device)
        k_cache, v_cache = k_cache.view(codes), v_cache.view(codes)
    k_cache, v_cache = in_rows(k_cache, LAYOUTS[layout], False), in_rows(v_cache, LAYOUTS[layout], True)
    if table_starts is not None:
        block_table = _in_rows(block_table[0], table_starts, seqused_k, k_cache.shape[1])
    wide = torch.promote_types(q.dtype, torch.float32)
    heads, block_size = q.shape[1], k_cache.shape[1]
    out = q.new_zeros((*q.shape[:2], v_cache.shape[-1]))
    lse = q.new_full((heads, q.shape[0]), float("-inf"), dtype=wide)
    lengths = seqused_k.tolist()
    ends = (
        cu_seqlens_q.tolist()
        if cu_seqlens_q is not None
        else [b * max_seqlen_q for b in range(len(lengths) + 1)]
    )
    for sequence, length in enumerate(lengths):
        begin, end = ends[sequence : sequence + 2]
        count = end - begin
        if count == 0 or length == 0:
            continue
        distance = distances(count, length, q.device)
        hidden = hidden_keys(distance, causal, left, right)
        seen = ~hidden.all(0)
        key = torch.arange(length, device=q.device)
        blocks = block_table[sequence, key // block_size].long()
        blocks = torch.where(seen, blocks, blocks[seen][:1] if bool(seen.any()) else 0)
        k, v = (
            rows_at(cache, blocks, key % block_size).to(wide).transpose(0, 1) for cache in (k_cache, v_cache)
        )
        k, v = (
            each if given is None else each * _scale_of(given, sequence, blocks, key % block_size).to(wide)
            for each, given in ((k, k_scale), (v * value_factor, v_scale))
        )
        # Keys that no query sees are not used, even if they are NaN.
        k, v = (tensor.masked_fill(~seen[None, :, None], 0) for tensor in (k, v))
        # The queries of the heads that share a key head are rows of one product: 128 copies of latents would be a gigabyte.
        scores = scale * (q[begin:end].to(wide).transpose(0, 1).reshape(len(k), -1, k.shape[-1]) @ k.mT)
        scores = scores.view(heads, count, length)
        slopes = (
            alibi_slopes[sequence] if alibi_slopes is not None and alibi_slopes.dim() == 2 else alibi_slopes
        )
        scores = with_terms(scores, distance, softcap, slopes)
        scores = scores.masked_fill(hidden, float("-inf"))
        sums = scores.logsumexp(-1)
        with_sinks = log_sum_with_sinks(sums, sinks)
        weights = (scores - with_sinks.masked_fill(sums.isinf(), 0)[..., None]).exp()
        found = (weights.view(len(v), -1, length) @ v).view(heads, count, -1)
        out[begin:end] = found.transpose(0, 1).to(q.dtype)
        lse[:, begin:end] = sums
    return out, lse


def in_rows(cache: torch.Tensor, layout: Layout, values: bool) -> torch.Tensor:
    """The cache as (blocks, block_size, heads, D); grouped layouts are copied."""
    if layout == "nhd":
        return cache
    if layout == "hnd":
        return cache.transpose(1, 2)
    if not values:
        return cache.permute(0, 3, 1, 2, 4).flatten(3, 4)
    if layout == "paged":
        return cache.permute(0, 3, 1, 2)
    return cache.permute(0, 2, 4, 1, 3).flatten(1, 2)


def _block_size_and_heads(k_cache: torch.Tensor, layout: Layout) -> tuple[int, int]:
    slots, heads = {"nhd": (1, 2), "hnd": (2, 1)}.get(layout, (3, 1))
    return k_cache.shape[slots], k_cache.shape[heads]


def _check_groups(where: str, k_cache: torch.Tensor, v_cache: torch.Tensor, layout: Layout) -> None:
    x = 16 // k_cache.dtype.itemsize
    blocks, heads, groups, block_size, _ = k_cache.shape
    wanted = (blocks, heads, groups * x, block_size)
    if layout == "asm":
        wanted = (blocks, heads, block_size // x, groups * x, x)
    least = x if layout == "asm" else 8
    if k_cache.shape[4] != x or tuple(v_cache.shape) != wanted or block_size % least:
        raise ValueError(
            f"{where}: k_cache has shape {tuple(k_cache.shape)} and v_cache {tuple(v_cache.shape)}; with cache_layout {layout!r} and "
            f"{k_cache.dtype} they must be {_SHAPES[layout]}, x = {x} and block_size a multiple of {least}"
        )


def scales_by_key(scale: torch.Tensor | float | None) -> bool:
    return isinstance(scale, torch.Tensor) and scale.dim() == 3 and scale.numel() != 1


def _scale_of(scale: torch.Tensor, sequence: int, blocks: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The scale of a sequence's rows (key heads, keys, D)."""
    if scale.numel() == 1:
        return scale.reshape(1, 1, 1)
    if scale.dim() == 3:
        scale = scale[blocks, :, places].T
    else:
        scale = (scale[sequence] if scale.dim() == 2 else scale)[:, None]
    return scale[..., None]


def _in_rows(
    blocks: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Concatenated block lists as a two-dimensional table, one row for each sequence; entries past the end of a list are arbitrary."""
    entries = int(lengths.max()) // block_size + 1 if len(lengths) else 1
    if len(blocks) == 0:
        return blocks.new_zeros(len(starts), entries)
    places = starts[:, None].long() + torch.arange(entries, device=blocks.device)
    return blocks[places.clamp(max=len(blocks) - 1)]


def rows_at(cache: torch.Tensor, blocks: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The rows of a cache (blocks, places, ...). PyTorch gathers 8-bit floats only as bytes."""
    return as_operand(cache)[blocks, places].view(cache.dtype)
