# SPDX-License-Identifier: MIT
"""fmha_v3_fwd: AITER's attention forward, for batches and for sequences of different lengths."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from tests.oracles.aiter.launch import Buffer, Run, kernel, output, relative_error


def visible(queries: int, keys: int, mask: str, window: tuple[int, int] = (-1, -1)) -> torch.Tensor:
    """True where query i sees key j. Masks: none, causal (top left), causal_br (bottom right), window."""
    shift = keys - queries if mask.endswith("_br") else 0
    distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None] - shift
    seen = torch.ones(queries, keys, dtype=torch.bool)
    left, right = window
    if mask.startswith("causal"):
        left, right = -1, 0
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def forward_reference(q, k, v, scale: float, seen: torch.Tensor):
    """The reference in f64, [batch, length, heads, size]; rows that see nothing give 0 and a logarithm of -inf."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.double(), k.double().repeat_interleave(group, 2), v.double().repeat_interleave(group, 2)
    scores = (torch.einsum("bqhd,bkhd->bhqk", q, k) * scale).masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(lse[..., None].isinf(), 0.0, (scores - lse[..., None]).exp())
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), lse


@dataclasses.dataclass
class Result:
    run: Run
    out: torch.Tensor
    error: float
    lse_error: float


def variant(name: str) -> tuple[int, int, bool, bool]:
    """Rows of a workgroup's tile, head size of a query, causal, group."""
    wide = "hd192_hd128" in name
    return (
        (128, 192, "causal" in name, "group" in name)
        if wide
        else (256, 128, "causal" in name, "group" in name)
    )


def run_batch(
    name: str, batch: int, queries: int, keys: int, heads: int, kv_heads: int, seed: int = 1, values=None
):
    tile, size, causal, _ = variant(name)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator).bfloat16()

    if values is None:
        values = (
            normal(batch, queries, heads, size),
            normal(batch, keys, kv_heads, size),
            normal(batch, keys, kv_heads, 128),
        )
    q, k, v = (Buffer(value) for value in values)
    out = output((batch, queries, heads, 128), torch.bfloat16)
    lse = output((batch, heads, queries), torch.float32)
    scale = 1 / math.sqrt(size)
    arguments = {
        "R": out, "Q": q, "K": k, "V": v, "LSE": lse, "scalar": scale, "seq_len": queries, "Seqs": q.stride(1),
        "Ts": tile * q.stride(1), "Hs": q.stride(2), "Bs": q.stride(0), "gqa": heads // kv_heads,
        "k_Seqs": k.stride(1), "k_Hs": k.stride(2), "k_Bs": k.stride(0), "msk_opt": 3 if causal and heads % 8 else 5,
        "lse": 1, "kv_seq_len": keys, "qk_head_dim": size, "v_head_dim": 128, "q_head_num": heads,
        "v_Seqs": v.stride(1), "v_Hs": v.stride(2), "v_Bs": v.stride(0), "r_Seqs": out.stride(1),
        "r_Hs": out.stride(2), "r_Bs": out.stride(0), "lse_Hs": 4 * queries,
    }  # fmt: skip
    tiles = -(-queries // tile)
    run = kernel(name).launch((-(-tiles // 2) if causal else tiles, heads, batch), arguments)
    seen = visible(queries, keys, "causal_br" if causal else "none")
    expected, expected_lse = forward_reference(q.tensor, k.tensor, v.tensor, scale, seen)
    return Result(run, out.tensor, relative_error(out.tensor, expected), _lse_error(lse.tensor, expected_lse))


def run_group(name: str, lengths: Sequence[tuple[int, int]], heads: int, kv_heads: int) -> Result:
    tile, size, causal, _ = variant(name)
    generator = torch.Generator().manual_seed(1)
    starts_q, starts_k = (
        torch.tensor([0, *(pair[side] for pair in lengths)]).cumsum(0).int() for side in (0, 1)
    )
    total_q, total_k = int(starts_q[-1]), int(starts_k[-1])
    longest_q, longest_k = (max(pair[side] for pair in lengths) for side in (0, 1))

    def normal(*shape):
        return Buffer(torch.randn(shape, generator=generator).bfloat16())

    q, k, v = normal(total_q, heads, size), normal(total_k, kv_heads, size), normal(total_k, kv_heads, 128)
    out, lse = output((total_q, heads, 128), torch.bfloat16), output((heads, total_q), torch.float32)
    q_starts, k_starts = Buffer(starts_q), Buffer(starts_k)
    scale = 1 / math.sqrt(size)
    arguments = {
        "R": out, "Q": q, "K": k, "V": v, "LSE": lse, "scalar": scale, "seq_len": longest_q, "Seqs": q.stride(0),
        "Ts": tile * q.stride(0), "Hs": q.stride(1), "Bs": 0, "gqa": heads // kv_heads, "k_Seqs": k.stride(0),
        "k_Hs": k.stride(1), "k_Bs": 0, "msk_opt": 3 if causal and heads % 8 else 5, "lse": 1,
        "kv_seq_len": longest_k, "qk_head_dim": size, "v_head_dim": 128, "q_head_num": heads, "v_Seqs": v.stride(0),
        "v_Hs": v.stride(1), "v_Bs": 0, "r_Seqs": out.stride(0), "r_Hs": out.stride(1), "r_Bs": 0,
        "lse_Hs": 4 * total_q, "ptr_qseq": q_starts, "ptr_kseq": k_starts, "ptr_qseq_padding": q_starts,
        "ptr_kseq_padding": k_starts,
    }  # fmt: skip
    tiles = -(-longest_q // tile)
    tiles = -(-tiles // 2) if causal else tiles
    # The files of gfx942 that name no rounding are an older revision, with a batch's grid.
    older = name.startswith("gfx942") and "_rt" not in name
    run = kernel(name).launch(
        (tiles, heads, len(lengths)) if older else (heads, len(lengths), tiles), arguments
    )
    parts, lse_parts = [], []
    for index, (queries, keys) in enumerate(lengths):
        rows, columns = (
            slice(starts_q[index], starts_q[index + 1]),
            slice(starts_k[index], starts_k[index + 1]),
        )
        seen = visible(queries, keys, "causal_br" if causal else "none")
        part, part_lse = forward_reference(
            q.tensor[None, rows], k.tensor[None, columns], v.tensor[None, columns], scale, seen
        )
        parts.append(part[0])
        lse_parts.append(part_lse[0])
    error = relative_error(out.tensor, torch.cat(parts))
    return Result(run, out.tensor, error, _lse_error(lse.tensor, torch.cat(lse_parts, 1)))


def _lse_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    assert torch.equal(result.isinf(), expected.isinf())
    return float((result.double() - expected)[~expected.isinf()].abs().max())
