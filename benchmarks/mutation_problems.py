# SPDX-License-Identifier: MIT
"""For every prebuilt kernel a small problem that runs it, turns its loop at least twice and reaches its tails."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import hipkittens
from hipkittens import _installation
from hipkittens._representative import _DTYPES, _draw, _gemm, _rotary

# m, n, k at which the plan takes the tile on the targets that have it: it wants a tile for every compute unit.
_GEMM = {
    "256x256x64": (4864, 4096, 456),
    "256x224x32": (4096, 4096, 1032),
    "256x128x64": (4096, 2048, 328),
    "128x128x64": (2048, 2048, 328),
    "64x128x64": (512, 4096, 776),
    "64x64x64": (1024, 2048, 264),
    "32x64x64": (512, 512, 264),
    "64x64x64_unaligned": (257, 129, 515),
}
# `workers` of the arguments in csrc/kernels/norm/arguments.h, by kind of kernel that has a loop over rows.
_NORM_WORKERS = {"forward": 0x98, "backward": 0xBC}


def _attention(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    backward: bool,
    keys: int | None = None,
    dropout_p: float = 0.0,
) -> None:
    batch, length, heads, key_heads, size = shape
    q = _draw(batch, length, heads, size, dtype=dtype)
    k, v = (_draw(batch, keys or length, key_heads, size, dtype=dtype) for _ in range(2))
    with torch.set_grad_enabled(backward):
        out = hipkittens.attention(q, k, v, dropout_p=dropout_p)
    if backward:
        out.backward(_draw(*out.shape, dtype=dtype).detach())


def _norm(kind: str, dtype: torch.dtype, rows: int, columns: int) -> None:
    x = _draw(rows, columns, dtype=dtype)
    parameter = dtype if kind != "forward" else torch.float32 if dtype != torch.float32 else torch.bfloat16
    weight, bias = (_draw(columns, dtype=parameter) for _ in range(2))
    # Stores of statistics between loads and the waits for them would hide a wait that is too weak.
    backward = kind != "forward"
    with torch.set_grad_enabled(backward):
        y = hipkittens.rms_norm(x, weight) if kind == "rms" else hipkittens.layer_norm(x, weight, bias)
    if backward:
        y.backward(_draw(rows, columns, dtype=dtype).detach())


@dataclass(frozen=True)
class Trial:
    """`workgroups`: so many of them are run. skip: the problem is only asked for its launches."""

    title: str
    call: Callable[[], Any]
    workgroups: int
    skip: bool = False
    workers_at: int | None = (
        None  # an argument: how many share the rows. So few are told to that each takes several
    )


def kernels(target: str) -> list[str]:
    return [kernel["symbol"] for entry in _installation.pack(target).entries for kernel in entry["kernels"]]


def short_name(symbol: str) -> str:
    return symbol.removeprefix("hipkittens_").rsplit("_", 1)[0]


def trial(name: str) -> Trial:
    """For the short name of a kernel: without hipkittens_ in front of it and the target behind it."""
    gemm = re.fullmatch(r"gemm_([nt]{2})_(\w+?)_(\d+x.*)", name)
    if gemm:
        orientation, dtype, tile = gemm.groups()
        m, n, k = _GEMM[tile]
        call = partial(_gemm, orientation, _DTYPES[dtype], m, n, k)
        return Trial(f"matmul {orientation} {m}x{n}x{k} {dtype}", call, 3, skip=True)
    if name == "gemm_reduce":
        call = partial(_gemm, "nt", _DTYPES["bf16"], 256, 128, 2048)
        return Trial("matmul nt 256x128x2048 bf16", call, 4)
    combine = re.fullmatch(r"attention_forward_combine_(bf16|f16)", name)
    if combine:  # few queries share out their keys
        call = partial(_attention, _DTYPES[combine[1]], (1, 16, 2, 1, 64), False, keys=2048)
        return Trial(f"attention B1 N16x2048 H2 Hkv1 D64 {combine[1]}", call, 4)
    attention = re.fullmatch(
        r"attention_(forward|backward)_.*?(bf16|f16)(?:_d(\d+)(?:_32_queries)?)?(_interleaved_8_waves|_interleaved|_dropout)?",
        name,
    )
    if attention:
        which, dtype, size, special = attention.groups()
        large, dropout = special == "_interleaved_8_waves", 0.1 if special == "_dropout" else 0.0
        size = int(size or 64)
        # Whole tiles of keys and a broken one, of which two of its loads have rows; large tiles want one for every compute unit.
        shape = (2, 500, 80, 8, size) if large else (2, 204, 2, 1, size)
        backward = which == "backward"
        call = partial(_attention, _DTYPES[dtype], shape, backward, dropout_p=dropout)
        title = "attention B{} N{} H{} Hkv{} D{} {}".format(*shape, dtype) + " dropout" * bool(dropout)
        return Trial(title, call, 3 if large else 16, skip=not backward)
    norm = re.fullmatch(r"norm_(?:(\w+?)_(bf16|f16|f32)(?:_(\d+))?|reduce)", name)
    if norm:
        _, dtype, columns = norm.groups()
        dtype, columns = dtype or "bf16", int(columns or (65536 if norm[1] == "columns" else 512))
        kind = norm[1] or "reduce"
        at = _NORM_WORKERS.get(kind)
        # Columns of 8 rows are added by as many waves, of which each has one; the others come round again.
        rows = 2048 if kind == "reduce" else 64 if at is not None else 8
        call = partial(_norm, kind, _DTYPES[dtype], rows, columns)
        return Trial(
            f"{'rms' if kind == 'rms' else 'layer'}_norm {rows}x{columns} {dtype}", call, 4, workers_at=at
        )
    rotary = re.fullmatch(r"rotary_(?:plain_)?(bf16|f16|f32)(?:_\w+)?", name)
    if rotary:
        call = partial(_rotary, _DTYPES[rotary[1]], 40, 4, 2, 128)
        return Trial(f"rotary_qk N40 H4 Hkv2 D128 {rotary[1]}", call, 4)
    raise LookupError(f"no problem is known that runs the kernel {name}")
