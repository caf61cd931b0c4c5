# SPDX-License-Identifier: MIT
"""Attention with work divided into equal shares of keys, by AITER's names: hipkittens.attention_paged with a plan.

AITER's kernels combine parts by locks that running workgroups wait for; here a second launch combines them. Tensors for AITER's own partial
results (Mp, Lp, Op, locks) are not touched, and arguments that only size its kernels (BLOCK_M, num_warps, waves_per_eu) are ignored.
BLOCK_N is used: batch_num_block_n contains the ends of sequences in blocks of this many keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .. import attention, attention_paged, attention_paged_plan, is_batch_invariant
from ..paged_attention import LARGEST_PLANNED_SPLITS
from ._results import refuse

# BLOCK_SIZE_N of AITER's MI300X-LEANATTN-DEFAULT.json, and a workgroup for each compute unit of an MI300X.
_BLOCK_N, _WORKGROUPS = 64, 304


def persistent_lean_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    Mp: torch.Tensor | None,
    Lp: torch.Tensor | None,
    Op: torch.Tensor | None,
    locks: torch.Tensor | None,
    batch_num_block_n: torch.Tensor,
    batch_size: int,
    sm_scale: float,
    causal: bool = True,
    RAGGED_BATCH: bool = False,
    config: Mapping[str, Any] | None = None,
    program_count: int | None = None,
) -> torch.Tensor:
    """q [batch_size * N_q, heads, D] to k and v [all keys, key heads, D], D of 64, 128 or 256. The result has q's shape and dtype.

    RAGGED_BATCH: sequence b has keys from batch_num_block_n[b - 1] (0 for the first one) to batch_num_block_n[b], int32, in blocks of
    config["BLOCK_SIZE_N"] keys, 64 without a config. Otherwise all sequences have the same number, and batch_num_block_n is ignored.
    causal needs as many keys as queries in each sequence, as AITER's mask does. sm_scale is used; AITER uses 1 / sqrt(D) instead.
    program_count, by default 304: workgroups among which the keys of a ragged batch are divided.
    """
    name = "persistent_lean_attention"
    block_n = _BLOCK_N if config is None else int(config["BLOCK_SIZE_N"])
    rows = _rows_of_each(name, "q", q, 0, batch_size)
    if not causal:
        ends = batch_num_block_n if RAGGED_BATCH else None
        return _keys_in_shares(
            name, q, k, v, rows, ends, block_n, batch_size, sm_scale, program_count or _WORKGROUPS
        )
    if RAGGED_BATCH:
        refuse(name, "RAGGED_BATCH", "True with causal", "call hipkittens.attention_varlen")
    _check_prompts(name, "q", "k", q, k, v)
    return _prompts(q, k, v, rows, batch_size, sm_scale)


def persistent_lean_attention_paged(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_block_tables: torch.Tensor,
    Mp: torch.Tensor | None,
    Lp: torch.Tensor | None,
    Op: torch.Tensor | None,
    locks: torch.Tensor | None,
    batch_num_block_n: torch.Tensor,
    total_programs: int,
    BLOCK_M: int,
    BLOCK_N: int,
    batch_size: int,
    sm_scale: float,
    num_warps: int,
    waves_per_eu: int,
) -> torch.Tensor:
    """q [heads, batch_size * N_q, D] to k and v [heads, rows, D], contiguous, in blocks of BLOCK_N rows. The result has q's shape and
    dtype.

    Each head has its own table: the blocks of sequence b are kv_block_tables[head, batch_num_block_n[b - 1]: batch_num_block_n[b]],
    int32. No mask. total_programs: workgroups among which the keys of all heads and sequences are divided.
    """
    name = "persistent_lean_attention_paged"
    rows = _rows_of_each(name, "q", q, 1, batch_size)
    heads, _, head_dim = q.shape
    for argument, cache in (("k", k), ("v", v)):
        if (
            cache.dim() != 3
            or cache.shape[0] != heads
            or cache.shape[1] % BLOCK_N
            or not cache.is_contiguous()
        ):
            raise ValueError(
                f"hipkittens.aiter.{name}: {argument} has shape {tuple(cache.shape)} and strides {cache.stride()}; it must be contiguous, "
                f"(heads, rows, D) with the {heads} heads of q and a multiple of BLOCK_N = {BLOCK_N} rows"
            )
    if kv_block_tables.dim() != 2 or kv_block_tables.shape[0] != heads:
        raise ValueError(
            f"hipkittens.aiter.{name}: kv_block_tables has shape {tuple(kv_block_tables.shape)}; it must be (heads, blocks), with the "
            f"{heads} heads of q"
        )
    _check_ends(name, batch_num_block_n, batch_size)
    with torch.no_grad():
        # For attention_paged every head of every sequence is a sequence with one head.
        head = torch.arange(heads, device=q.device, dtype=torch.int32).unsqueeze(1)
        starts, blocks = _starts_and_blocks(batch_num_block_n)
        seqused_k = (blocks * BLOCK_N).repeat(heads)
        options = _plan(seqused_k, total_programs)
        out = attention_paged(
            q.reshape(-1, 1, head_dim),
            *(cache.view(-1, BLOCK_N, 1, head_dim) for cache in (k, v)),
            (kv_block_tables + head * (k.shape[1] // BLOCK_N)).flatten(),
            seqused_k,
            None,
            rows,
            causal=False,
            scale=sm_scale,
            table_starts=(starts + head * kv_block_tables.shape[1]).flatten(),
            **options,
        )
    return out.view(q.shape)


def pod_attention(
    cu_ctr: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    Mp: torch.Tensor | None,
    Lp: torch.Tensor | None,
    Op: torch.Tensor | None,
    locks: torch.Tensor | None,
    batch_num_block_n: torch.Tensor,
    total_programs: int,
    BLOCK_M: int,
    BLOCK_N: int,
    batch_size: int,
    sm_scale: float,
    num_warps: int,
    waves_per_eu: int,
    q_pf: torch.Tensor,
    k_pf: torch.Tensor,
    v_pf: torch.Tensor,
    Mp_pf: torch.Tensor | None,
    Lp_pf: torch.Tensor | None,
    Op_pf: torch.Tensor | None,
    locks_pf: torch.Tensor | None,
    batch_num_block_n_pf: torch.Tensor | None,
    BLOCK_M_pf: int,
    BLOCK_N_pf: int,
    batch_size_pf: int,
    prefill_ratio: int,
    decode_ratio: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decoding and prefill in one call: for decoding, q, k and v as in persistent_lean_attention with RAGGED_BATCH and without a mask; for
    prefill, q_pf, k_pf and v_pf [batch_size_pf * N, heads or key heads, D] of equal lengths, causal. Returns both results, in the shapes of
    q and q_pf.

    Both have separate launches, concurrent if the caller uses streams; AITER assigns workgroups of one launch to either by the compute unit
    on which they run, in the ratio of prefill_ratio and decode_ratio. Half of total_programs is for q.
    """
    name = "pod_attention"
    rows = _rows_of_each(name, "q", q, 0, batch_size)
    prompt_rows = _rows_of_each(name, "q_pf", q_pf, 0, batch_size_pf)
    _check_prompts(name, "q_pf", "k_pf", q_pf, k_pf, v_pf)
    decoded = _keys_in_shares(
        name, q, k, v, rows, batch_num_block_n, BLOCK_N, batch_size, sm_scale, total_programs // 2
    )
    return decoded, _prompts(q_pf, k_pf, v_pf, prompt_rows, batch_size_pf, sm_scale)


def _keys_in_shares(
    name: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rows: int,
    ends: torch.Tensor | None,
    block_n: int,
    batch_size: int,
    scale: float,
    workgroups: int,
) -> torch.Tensor:
    """Without a mask; ends of None: sequences of one length."""
    block_n = block_n if ends is not None else _rows_of_each(name, "k", k, 0, batch_size)
    if k.dim() != 3 or k.shape != v.shape or not block_n or k.shape[0] % block_n:
        raise ValueError(
            f"hipkittens.aiter.{name}: k has shape {tuple(k.shape)} and v {tuple(v.shape)}; both must be (keys, key heads, D) with a multiple of "
            f"{block_n} keys, the block size"
        )
    with torch.no_grad():
        blocks = torch.arange(k.shape[0] // block_n, device=q.device, dtype=torch.int32)
        table: dict[str, Any] = {}
        if ends is None:
            blocks = blocks.unsqueeze(1)
            seqused_k = torch.full((batch_size,), block_n, device=q.device, dtype=torch.int32)
        else:
            _check_ends(name, ends, batch_size)
            starts, counts = _starts_and_blocks(ends)
            seqused_k = counts * block_n
            table = {"table_starts": starts, **_plan(seqused_k, workgroups // max(k.shape[1], 1))}
        return attention_paged(
            q,
            *(each.unflatten(0, (-1, block_n)) for each in (k, v)),
            blocks,
            seqused_k,
            None,
            rows,
            causal=False,
            scale=scale,
            **table,
        )


def _prompts(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: int, batch_size: int, scale: float
) -> torch.Tensor:
    """Causal, with sequences of one length, as checked by _check_prompts."""
    with torch.no_grad():
        sequences = (each.unflatten(0, (batch_size, rows)) for each in (q, k, v))
        return attention(*sequences, causal=True, scale=scale).flatten(0, 1)


def _check_prompts(
    name: str, queries: str, keys: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    if k.dim() != 3 or k.shape != v.shape or k.shape[0] != q.shape[0]:
        raise ValueError(
            f"hipkittens.aiter.{name}: {keys} has shape {tuple(k.shape)} and v {tuple(v.shape)}; with a causal mask both must be "
            f"(keys, key heads, D) with as many keys as {queries} has queries, {q.shape[0]}"
        )


def _rows_of_each(name: str, argument: str, x: torch.Tensor, dimension: int, batch_size: int) -> int:
    if x.dim() != 3 or batch_size < 1 or x.shape[dimension] % batch_size:
        raise ValueError(
            f"hipkittens.aiter.{name}: {argument} has shape {tuple(x.shape)} and batch_size is {batch_size}; dimension {dimension} of three must "
            "have the rows of that many sequences of one length"
        )
    return x.shape[dimension] // batch_size


def _check_ends(name: str, ends: torch.Tensor, batch_size: int) -> None:
    if ends.dtype != torch.int32 or tuple(ends.shape) != (batch_size,):
        raise ValueError(
            f"hipkittens.aiter.{name}: batch_num_block_n is {ends.dtype} of shape {tuple(ends.shape)}; it must be int32 of shape "
            f"({batch_size},), one end for each sequence"
        )


def _starts_and_blocks(ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    return starts, ends - starts


def _plan(seqused_k: torch.Tensor, shares: int) -> dict[str, Any]:
    if is_batch_invariant():
        return {}
    shares = max(1, min(shares, LARGEST_PLANNED_SPLITS))
    return {"num_splits": shares, "plan": attention_paged_plan(seqused_k, shares)}
