# SPDX-License-Identifier: MIT
"""fmha_v3_bwd: AITER's gradients of attention, and the kernel that reorders its dQ.

The row sums of dO * O come from float64 here; AITER computes them with another kernel, which its wheel does not contain.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import torch

from tests.oracles.aiter.attention_forward import visible
from tests.oracles.aiter.launch import Buffer, Run, kernel, output, relative_error

LOG2E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A variant, from a file's name."""

    target: str
    size: int  # of a query and a key
    value_size: int
    dtype: torch.dtype
    mask: str
    wide: bool  # dQ is accumulated in f32
    suffix: str  # "": one length, whole tiles of 64 rows
    group: bool
    arguments: int  # bytes of the argument segment, which tell the interfaces apart

    @property
    def key_tile(self) -> int:
        if self.arguments == 704:
            return 192 if self.size == 192 else 256
        return 64 if self.size == 192 else 192


def variant(name: str) -> Variant:
    pattern = r"bwd_hd(\d+)(?:_hd(\d+))?_(bf16|fp16)(?:_(causal_br|causal|swa))?_(a16|a32)(?:_rtn[ae]|_rtz)?(?:_(pssk|psskddv|pddv))?(_group)?\.co"
    match = re.fullmatch(pattern, name.rsplit("/", 1)[1])
    assert match, name
    size, value_size, dtype, mask, sums, suffix, group = match.groups()
    return Variant(
        name.split("/")[0],
        int(size),
        int(value_size or size),
        torch.bfloat16 if dtype == "bf16" else torch.float16,
        mask or "none",
        sums == "a32",
        suffix or "",
        bool(group),
        kernel(name).metadata.argument_bytes,
    )


@dataclasses.dataclass
class Result:
    runs: list[Run]
    errors: Mapping[str, float]
    gradients: Mapping[str, torch.Tensor]


def backward_reference(q, k, v, d_out, scale: float, seen: torch.Tensor):
    """lse and sums [batch, heads, queries], dq, and dk and dv of every query head; in f64."""
    group = q.shape[2] // k.shape[2]
    q, k, v, d_out = (value.double() for value in (q, k, v, d_out))
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = (torch.einsum("bqhd,bkhd->bhqk", q, k) * scale).masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(-1)
    lse = torch.where(lse.isinf(), 0.0, lse)
    weights = (scores - lse[..., None]).exp()
    out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
    sums = (out * d_out).sum(-1).transpose(1, 2)
    d_weights = torch.einsum("bqhd,bkhd->bhqk", d_out, v)
    d_scores = weights * (d_weights - sums[..., None]) * scale
    dq, dk = torch.einsum("bhqk,bkhd->bqhd", d_scores, k), torch.einsum("bhqk,bqhd->bkhd", d_scores, q)
    return lse, sums, dq, dk, torch.einsum("bhqk,bqhd->bkhd", weights, d_out)


def _window(mask: str, window: tuple[int, int], queries: int, keys: int) -> dict[str, int]:
    """The window arguments of the sliding-window kernels: columns right of and rows below the diagonal."""
    left, right = window
    bottom_right = mask.endswith("_br")
    down = (left if left >= 0 else queries - 1) + 1 + (queries - keys if bottom_right else 0)
    across = (right if right >= 0 else keys - 1) + 1 + (keys - queries if bottom_right else 0)
    return {"mask_x": across, "mask_y": down}


def run_batch(
    name: str,
    batch: int,
    queries: int,
    keys: int,
    heads: int,
    kv_heads: int,
    *,
    size: int = 0,
    window: tuple[int, int] = (-1, -1),
    bottom_right: bool = False,
    values: Sequence[torch.Tensor] | None = None,
) -> Result:
    """Run a batch. A `size` below the file's own runs it with padded heads; `values` are q, k, v and dO."""
    kind = variant(name)
    size, value_size = (size, size) if size else (kind.size, kind.value_size)
    generator = torch.Generator().manual_seed(2)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(kind.dtype)

    if values is None:
        values = (
            normal(batch, queries, heads, size),
            normal(batch, keys, kv_heads, size),
            normal(batch, keys, kv_heads, value_size),
            normal(batch, queries, heads, value_size),
        )
    scale = 1 / math.sqrt(size)
    mask = "window" + "_br" * bottom_right if kind.mask == "swa" else kind.mask
    seen = visible(queries, keys, mask, window)
    lse, sums, *expected = backward_reference(*values, scale, seen)
    operands = [Buffer(value) for value in (*values, lse.float(), sums.float())]
    runs, gradients = launch_batch(name, *operands, window=_window(mask, window, queries, keys))
    errors = {
        key: relative_error(gradients[key], value) for key, value in zip(gradients, expected, strict=True)
    }
    return Result(runs, errors, gradients)


def launch_batch(
    name: str,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    d_out: Buffer,
    lse: Buffer,
    sums: Buffer,
    window: Mapping[str, int] | None = None,
) -> tuple[list[Run], dict[str, torch.Tensor]]:
    """The run, and dq, and dk and dv of every query head. q, k, v and dO are [batch, tokens, heads, size]; lse and the sums of
    dO * O are [batch, heads, queries]."""
    kind = variant(name)
    batch, queries, heads, size = q.tensor.shape
    keys, kv_heads, value_size = v.tensor.shape[1:]
    dk = output((batch, keys, heads, size), kind.dtype)
    dv = output((batch, keys, heads, value_size), kind.dtype)
    rows = -(-queries // 16) * 16
    shuffled = not kind.wide and kind.arguments == 704
    if kind.wide:
        dq = output((batch, heads, queries, size), torch.float32, zero=True)
    elif shuffled:
        dq = output((batch, heads, rows, 192 if kind.size == 192 else 128), kind.dtype, zero=True)
    else:
        dq = output((batch, queries, heads, size), kind.dtype, zero=True)
    # The sliding-window kernels read lse and the sums past their last row and multiply the result by zero: if NaN
    # follows in memory, dK and dV are NaN. A tolerated over-read is 0.
    arguments = {
        "dQ": dq, "dK": dk, "dV": dv, "Q": q, "K": k, "V": v, "dO": d_out, "Lse": lse, "D": sums,
        "scalar": 1 / math.sqrt(size), "log2e": LOG2E, "ratio": heads // kv_heads,
    }  # fmt: skip
    if kind.arguments == 352:
        arguments |= {
            "seq_len": queries, "Ts": kind.key_tile * k.stride(1), "Hs": q.stride(2), "BAs": q.stride(0),
            "Seqs": q.stride(1), "Hs_kv": k.stride(2), "BAs_kv": k.stride(0), "Seqs_kv": k.stride(1),
            "Seqs_dkv": dk.stride(1), "head_dim": size,
        }  # fmt: skip
    else:
        arguments |= {"seqlen_q": queries, "seqlen_k": keys}
        for letter, tensor in {"q": q, "k": k, "v": v, "do": d_out, "dk": dk, "dv": dv}.items():
            arguments |= {f"Hs_{letter}": tensor.stride(2), f"BAs_{letter}": tensor.stride(0)}
            arguments[f"Seqs_{letter}"] = tensor.stride(1)
    if kind.arguments == 704:
        arguments |= {
            "Ts": kind.key_tile * k.stride(1), "head_dim_q": size, "head_dim_k": value_size, "nhead_q": heads,
            "Hs_lsed": 4 * queries, "max_seq_len_dq": queries if kind.wide else rows,
        }  # fmt: skip
    elif kind.arguments in (272, 288):
        arguments |= {"head_dim": size, "nhead" if kind.mask == "swa" else "nhead_q": heads}
    if kind.mask == "swa":
        arguments |= window
    tiles = -(-keys // kind.key_tile)
    grid = (-(-tiles // 2) if kind.mask.startswith("causal") else tiles, heads, batch)
    runs = [kernel(name).launch(grid, arguments)]
    result = dq.tensor
    if kind.wide:
        result = result.transpose(1, 2)
    elif shuffled:
        shape = (batch, queries, heads, size)
        result, run = _in_order(kind, dq, shape, queries, rows)
        runs.append(run)
    return runs, {"dq": result, "dk": dk.tensor, "dv": dv.tensor}


def _in_order(kind: Variant, sums: Buffer, shape, queries: int, rows: int, starts: Buffer | None = None):
    """Run dq_shuffle. gfx950 accumulates 16-bit dQ in the order in which MFMA stores it."""
    out = output(shape, kind.dtype)
    batch = shape[0] if starts is None else starts.tensor.numel() - 1
    row = 1 if starts is None else 0
    arguments = {
        "dQ_acc": Buffer(sums.tensor), "dQ": out, "Ts": 64 * out.stride(row), "Hs_dq_acc": sums.stride(1),
        "BAs_dq_acc": sums.stride(0), "Seqs_dq_acc": sums.stride(2), "Hs_dq": out.stride(row + 1),
        "BAs_dq": out.stride(0) if starts is None else 0, "Seqs_dq": out.stride(row), "seqlen_q": queries,
        "head_dim": shape[-1], "max_seqlen_dq": rows,
    }  # fmt: skip
    name = f"{kind.target}/fmha_v3_bwd/bwd_hd{kind.size}_dq_shuffle.co"
    if starts is not None:
        name = name.replace(".co", "_group.co")
        arguments |= {176: starts, 192: starts}  # pointers, whatever their names in the metadata
    run = kernel(name).launch((-(-queries // 64), shape[-2], batch), arguments)
    return out.tensor, run


def run_group(
    name: str, lengths: Sequence[tuple[int, int]], heads: int, kv_heads: int, size: int = 0
) -> Result:
    kind = variant(name)
    size, value_size = (size, size) if size else (kind.size, kind.value_size)
    generator = torch.Generator().manual_seed(1)
    starts_q, starts_k = (
        torch.tensor([0, *(pair[side] for pair in lengths)]).cumsum(0).int() for side in (0, 1)
    )
    total_q, total_k = int(starts_q[-1]), int(starts_k[-1])
    longest_q, longest_k = (max(pair[side] for pair in lengths) for side in (0, 1))

    def normal(*shape):
        return Buffer(torch.randn(shape, generator=generator).to(kind.dtype))

    q, k, v = (
        normal(total_q, heads, size),
        normal(total_k, kv_heads, size),
        normal(total_k, kv_heads, value_size),
    )
    d_out = normal(total_q, heads, value_size)
    scale = 1 / math.sqrt(size)
    parts = []
    for index, (queries, keys) in enumerate(lengths):
        rows, columns = (
            slice(starts_q[index], starts_q[index + 1]),
            slice(starts_k[index], starts_k[index + 1]),
        )
        seen = visible(queries, keys, kind.mask)
        tensors = (
            q.tensor[None, rows],
            k.tensor[None, columns],
            v.tensor[None, columns],
            d_out.tensor[None, rows],
        )
        parts.append([value[0] for value in backward_reference(*tensors, scale, seen)])
    lse, sums = (torch.cat([part[index] for part in parts], 1).float() for index in (0, 1))
    expected = [torch.cat([part[index] for part in parts]) for index in (2, 3, 4)]
    rows = -(-longest_q // 16) * 16
    if kind.wide:
        dq = output((heads, total_q, size), torch.float32, zero=True)
    else:
        dq = output((len(lengths), heads, rows, 192 if kind.size == 192 else 128), kind.dtype, zero=True)
    dk, dv = output((total_k, heads, size), kind.dtype), output((total_k, heads, value_size), kind.dtype)
    q_starts, k_starts = Buffer(starts_q), Buffer(starts_k)
    arguments = {
        "dQ": dq, "dK": dk, "dV": dv, "Q": q, "K": k, "V": v, "dO": d_out, "Lse": Buffer(lse), "D": Buffer(sums),
        "scalar": scale, "log2e": LOG2E, "ratio": heads // kv_heads,
    }  # fmt: skip
    for letter, tensor in {"q": q, "k": k, "v": v, "do": d_out, "dk": dk, "dv": dv}.items():
        arguments |= {f"Hs_{letter}": tensor.stride(1), f"Seqs_{letter}": tensor.stride(0)}
    if kind.arguments == 248:
        arguments |= {
            72: q_starts, 80: k_starts, 88: q_starts, 96: k_starts, "s_Hs_lsed": 4 * total_q, "seqlen_k": total_k,
            "head_dim": size,
        }  # fmt: skip
    else:
        arguments |= {f"BAs_{letter}": 0 for letter in ("q", "k", "v", "do", "dk", "dv")}
        # The metadata gives these four pointers four bytes.
        arguments |= {592: q_starts, 608: k_starts, 624: q_starts, 640: k_starts}
        arguments |= {
            "seqlen_q": longest_q, "Ts": kind.key_tile * k.stride(0), "seqlen_k": longest_k, "head_dim_q": size,
            "head_dim_k": value_size, "nhead_q": heads, "Hs_lsed": 4 * total_q,
            "max_seq_len_dq": longest_q if kind.wide else rows,
        }  # fmt: skip
    tiles = -(-longest_k // kind.key_tile)
    grid = (-(-tiles // 2) if kind.mask.startswith("causal") else tiles, heads, len(lengths))
    runs = [kernel(name).launch(grid, arguments)]
    if kind.wide:
        result = dq.tensor.transpose(0, 1)
    else:
        result, run = _in_order(kind, dq, (total_q, heads, size), longest_q, rows, q_starts)
        runs.append(run)
    gradients = {"dq": result, "dk": dk.tensor, "dv": dv.tensor}
    errors = {
        key: relative_error(gradients[key], value) for key, value in zip(gradients, expected, strict=True)
    }
    return Result(runs, errors, gradients)
