# SPDX-License-Identifier: MIT
"""Absorbed multi-head latent attention to a paged cache: all heads share one key, and its latent is their value."""

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
from ._latent_rows import (
    LATENT,
    ROTARY,
    SCALED_ROW_BYTES,
    SCALED_ROW_DTYPES,
    has_scaled_rows,
    scaled_rows_in_bfloat16,
)
from ._paged_sequences import (
    DTYPES,
    check_cache,
    check_flag_and_output,
    check_rows,
    check_sequences,
    check_values,
    scale_factor,
    values_are_known,
)
from ._score_terms import check_score_terms
from .attention import scale_or_default
from .cache import LAYOUTS, as_operand
from .paged_attention import paged_in_torch


@overload
def attention_mla(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int = 1,
    *,
    scale: float,
    head_dim_v: int = LATENT,
    causal: bool = True,
    table_starts: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    kv_scale: torch.Tensor | float | None = None,
    num_splits: int = 0,
    out: torch.Tensor | None = None,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def attention_mla(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int = 1,
    *,
    scale: float,
    head_dim_v: int = LATENT,
    causal: bool = True,
    table_starts: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    kv_scale: torch.Tensor | float | None = None,
    num_splits: int = 0,
    out: torch.Tensor | None = None,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def attention_mla(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int = 1,
    *,
    scale: float,
    head_dim_v: int = LATENT,
    causal: bool = True,
    table_starts: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    kv_scale: torch.Tensor | float | None = None,
    num_splits: int = 0,
    out: torch.Tensor | None = None,
    return_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def attention_mla(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int = 1,
    *,
    scale: float,
    head_dim_v: int = LATENT,
    causal: bool = True,
    table_starts: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    kv_scale: torch.Tensor | float | None = None,
    num_splits: int = 0,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Multi-head latent attention (MLA) to a paged cache, with the key and value projections absorbed.

    The projections are absorbed into q and into what follows the attention, as when DeepSeek V2 and V3 decode. The result is (T, H, 512)
    in q's dtype.

    - `q`: (T, H, 576), bfloat16 or float16: for each head 512 features for the latent, then 64 rotary features.
    - `kv_cache`: (blocks, block_size, 576) or (blocks, block_size, 1, 576), as written by `mla_cache_write`: the latent of a key, then its
      rotary features. q's dtype, or 8-bit floats as in `attention_paged`, with kv_scale for the whole row. All heads read the same key,
      and its latent is their value; each row is loaded once for both. With bfloat16 q also rows of 656 bytes (torch.uint8, torch.int8 or
      torch.float8_e4m3fn) that contain their own scales, as in DeepSeek V3.2 and FlashMLA: 512 values of float8_e4m3fn on every
      target, 4 float32 scales, one for each 128 values, and 64 rotary features in bfloat16. A value times its scale is rounded to
      bfloat16.
    - `block_table`, `seqused_k`, `cu_seqlens_q`, `max_seqlen_q`, `causal`, `sinks`, `num_splits`, `out`, `return_lse`: as in
      `attention_paged`. With num_splits = 1 and max_seqlen_q * H on the same side of 16, a sequence has the same bits alone and in a batch.
    - `table_starts`: int32 (B,). If passed, block_table is one-dimensional, the concatenated block lists of all sequences, and the list
      of sequence b begins at table_starts[b]: the format of AITER and FlashInfer, kv_indices with kv_indptr[:-1].
    - `scale`: multiplies the products. It is the model's: 1 / sqrt(128 + 64) in DeepSeek V3, times the square of YaRN's mscale, and not
      1 / sqrt(576).
    - `head_dim_v`: 512, the number of features of a value.
    - `kv_scale`: the dequantization scale of a cache of 8-bit floats.

    q, out and kv_cache need unit stride along their last dimension and rows aligned to 4 bytes; no tensor is copied, and addresses are
    64-bit. Products and sums are float32 and rounded once.

    Not differentiable: raises ValueError where autograd would record the call. Raises TypeError or ValueError, before anything is
    launched, for arguments that no kernel supports. The values of block_table, seqused_k and cu_seqlens_q are validated on a CPU, as in
    `attention_paged`.
    """
    return attend_latent(
        "hipkittens.attention_mla", q, kv_cache, block_table, seqused_k, cu_seqlens_q, max_seqlen_q, scale, head_dim_v, causal,
        table_starts, sinks, kv_scale, num_splits, out, return_lse,
    )  # fmt: skip


def attend_latent(
    where: str,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    max_seqlen_q: int,
    scale: float,
    head_dim_v: int,
    causal: bool,
    table_starts: torch.Tensor | None,
    sinks: torch.Tensor | None,
    kv_scale: torch.Tensor | float | None,
    num_splits: int,
    out: torch.Tensor | None,
    return_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """attention_mla with error messages that begin with `where`."""
    check_whole_number(where, "max_seqlen_q", max_seqlen_q)
    check_whole_number(where, "num_splits", num_splits)
    if isinstance(kv_cache, torch.Tensor) and kv_cache.dim() == 3:
        kv_cache = kv_cache.unsqueeze(2)
    scale = _check(
        where, q, kv_cache, block_table, table_starts, seqused_k, cu_seqlens_q, sinks, max_seqlen_q, causal, scale, head_dim_v,
        num_splits,
    )  # fmt: skip
    check_flag_and_output(where, q, LATENT, out, return_lse)
    scaled = has_scaled_rows(kv_cache)
    if scaled and kv_scale is not None:
        raise ValueError(
            f"{where}: kv_scale is given and kv_cache has rows of {SCALED_ROW_BYTES} bytes, which have scales of their own; leave it out"
        )
    factor = scale_factor(where, "kv_scale", kv_scale, "kv_cache", kv_cache, {})
    kv_scale = kv_scale if isinstance(kv_scale, torch.Tensor) else None
    for name, value in (("q", q), ("kv_cache", kv_cache)):
        check_gets_no_gradient(where, name, value)
        check_rows(where, name, value)
    if sinks is not None:
        check_gets_no_gradient(where, "sinks", sinks)
        sinks = sinks.float().contiguous()
    if values_are_known(block_table, table_starts, seqused_k, cu_seqlens_q):
        blocks = kv_cache.shape[0], kv_cache.shape[1]
        check_values(where, q, blocks, block_table, table_starts, seqused_k, cu_seqlens_q, max_seqlen_q, -1)
    if block_table.stride(-1) != 1:
        block_table = block_table.contiguous()
    if table_starts is not None:
        block_table, table_starts = block_table.unsqueeze(0), table_starts.contiguous()
    seqused_k = seqused_k.contiguous()
    cu_seqlens_q = None if cu_seqlens_q is None else cu_seqlens_q.contiguous()
    arguments = (
        q, kv_cache.view(torch.uint8) if scaled else as_operand(kv_cache), block_table, table_starts, seqused_k, cu_seqlens_q, sinks, kv_scale, max_seqlen_q,
        scale * factor, factor, bool(causal), num_splits,
    )  # fmt: skip
    if _backend.uses_torch():
        result, lse = latent_in_torch(*arguments)
        out = result if out is None else out.copy_(result)
    elif out is None:
        out, lse = call("attention_mla", *arguments)
    else:
        lse = call("attention_mla_into", out, *arguments)
        torch.autograd.graph.increment_version(out)
    return (out, lse) if return_lse else out


@_backend.checked_once(1, 2, 3, 4, 5, 6, 7)
def _check(
    where: str,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    table_starts: torch.Tensor | None,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    sinks: torch.Tensor | None,
    max_seqlen_q: int,
    causal: bool,
    scale: float,
    head_dim_v: int,
    num_splits: int,
) -> float:
    """Checks the arguments and returns the scale. Raises for arguments that no kernel supports."""
    features = LATENT + ROTARY
    check_tensor(where, "q", q)
    check_dtype_and_device(where, "q", q, DTYPES, "q", q)
    if q.dim() != 3 or q.shape[2] != features or q.shape[1] == 0:
        raise ValueError(f"{where}: q has shape {tuple(q.shape)}; it must be (tokens, heads, {features})")
    check_latent_cache(where, kv_cache, q)
    if head_dim_v != LATENT:
        raise ValueError(
            f"{where}: head_dim_v is {head_dim_v!r}; it must be {LATENT}, the features of a latent"
        )
    check_sequences(where, q, block_table, table_starts, seqused_k, cu_seqlens_q, max_seqlen_q, num_splits)
    check_score_terms(where, q, q.shape[1], seqused_k.shape[0], sinks, 0.0, None)
    check_flag(where, "causal", causal)
    if scale is None:
        raise TypeError(
            f"{where}: scale is None; pass the model's, which is not that of 576 features: 1 / sqrt(128 + 64) in DeepSeek V3"
        )
    _backend.check_device(where, "q", q)
    return scale_or_default(where, scale, q)


def check_latent_cache(where: str, kv_cache: torch.Tensor, q: torch.Tensor) -> None:
    features = LATENT + ROTARY
    if isinstance(kv_cache, torch.Tensor) and has_scaled_rows(kv_cache):
        check_tensor(where, "kv_cache", kv_cache)
        check_dtype_and_device(where, "kv_cache", kv_cache, SCALED_ROW_DTYPES, "q", q)
        if q.dtype != torch.bfloat16:
            raise TypeError(
                f"{where}: q is {q.dtype} and kv_cache has rows of {SCALED_ROW_BYTES} bytes, with rotary features in {torch.bfloat16}: "
                "convert q to it"
            )
        features = SCALED_ROW_BYTES
    else:
        check_cache(where, "kv_cache", kv_cache, q)
    if kv_cache.dim() != 4 or kv_cache.shape[2:] != (1, features) or kv_cache.shape[1] == 0:
        raise ValueError(
            f"{where}: kv_cache has shape {tuple(kv_cache.shape)}; it must be (blocks, block_size, {features}) or (blocks, "
            f"block_size, 1, {features}), with 1 place or more in a block"
            + (
                ""
                if features == SCALED_ROW_BYTES
                else f", or of 8 bits with rows of {SCALED_ROW_BYTES} bytes"
            )
        )


def latent_in_torch(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    table_starts: torch.Tensor | None,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    sinks: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    max_seqlen_q: int,
    scale: float,
    value_factor: float,
    causal: bool,
    num_splits: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference in PyTorch, like `paged_in_torch`."""
    if has_scaled_rows(kv_cache):
        kv_cache = scaled_rows_in_bfloat16(kv_cache)
    return paged_in_torch(
        q, kv_cache, kv_cache[..., :LATENT], block_table, table_starts, seqused_k, cu_seqlens_q, None, sinks, kv_scale, kv_scale, None,
        max_seqlen_q, LAYOUTS.index("nhd"), scale, value_factor, causal, -1, -1, 0.0,
    )  # fmt: skip
