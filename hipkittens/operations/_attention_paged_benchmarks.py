# SPDX-License-Identifier: MIT
"""Benchmarks of attention to a paged cache: shapes of models, and the bytes and operations of each."""

from __future__ import annotations

import torch

from ..paged_attention import HEAD_SIZES, attention_paged
from ._record import Benchmark, Table
from ._tables import of_batches


def _operands(problem, device, cache: str):
    e = problem.extents
    pages = -(-e["L"] // e["P"])
    size = (e["B"] * pages, e["P"], e["K"], e["D"])
    # Quantized zeros: no cycle count depends on them.
    caches = [
        problem.tensor(device, *size)
        if cache == "16"
        else torch.zeros(size, dtype=torch.int8 if cache == "i8" else torch.uint8, device=device)
        for _ in range(2)
    ]
    order = torch.randperm(e["B"] * pages, generator=torch.Generator().manual_seed(0)).to(torch.int32)
    lengths = torch.full((e["B"],), e["L"], dtype=torch.int32, device=device)
    q = problem.tensor(device, e["B"] * e["N"], e["H"], e["D"])
    return q, *caches, order.reshape(e["B"], pages).to(device), lengths


def _call(problem, device, cache: str):
    e = problem.extents
    operands = _operands(problem, device, cache)
    options = {"window_size": (e["W"] - 1, 0) if e["W"] < e["L"] else (-1, -1)}
    if cache == "i8":
        blocks = operands[1].shape[0]
        options |= {
            name: torch.ones(blocks, e["K"], e["P"], device=device) for name in ("k_scale", "v_scale")
        }
    return lambda: attention_paged(*operands, None, e["N"], **options)


def _bytes(problem, cache: str) -> float:
    """Keys and values that some query sees, int8 ones with a scale each, queries and results."""
    e = problem.extents
    keys = 2 * min(e["L"], e["W"] + e["N"] - 1) * e["K"]
    rows = e["N"] * e["H"]
    of_key = {"16": 2 * e["D"], "fp8": e["D"], "i8": e["D"] + 4}[cache]
    return e["B"] * (keys * of_key + rows * (4.0 * e["D"] + 4.0))


def _flops(problem) -> float:
    e = problem.extents
    return 4.0 * e["B"] * e["H"] * e["N"] * min(e["L"], e["W"]) * e["D"]


def _refuse(extents) -> str | None:
    if extents["H"] % extents["K"]:
        return (
            f"{extents['H']} query heads cannot share {extents['K']} key heads; H has to be a multiple of K"
        )
    if extents["D"] not in HEAD_SIZES:
        return f"D is {extents['D']}; heads of 64, 128 and 256 have kernels"
    return None


_LLAMA = Table(
    "Llama 3 70B on 8 GPUs, 8,192 keys per sequence", "B{N}H8K1N1L8192D128P16", of_batches(1, 8, 64)
)
_GPT_OSS = Table("gpt-oss 120B, 8,192 keys per sequence", "B{N}H64K8N1L8192D64P16", of_batches(1, 8, 64))
_GPT_OSS_WINDOW = Table(
    "gpt-oss 120B, a window of 128 keys", "B{N}H64K8N1L8192D64P16W128", of_batches(1, 8, 64)
)


def _benchmark(
    name: str, cache: str, shapes: str, heading: str, tables: tuple[Table, ...] = (_LLAMA,)
) -> Benchmark:
    """cache: the element type of the cache, if it does not have 16 bits."""
    return Benchmark(
        name,
        example="B64H8K1N1L8192D128P16",
        letters="BHKNLDP",
        optional={"W": "L"},
        shapes=shapes,
        heading=heading,
        bytes=lambda problem: _bytes(problem, cache),
        flops=_flops,
        call=lambda problem, device: _call(problem, device, cache),
        refuse=_refuse,
        tables=tables,
    )


BENCHMARKS = (
    _benchmark(
        "attention_paged",
        "16",
        # Llama 3 70B on 8 GPUs; gpt-oss 120B, a layer with full attention and one with a window.
        "B64H8K1N1L8192D128P16,B64H64K8N1L8192D64P16,B64H64K8N1L8192D64P16W128",
        "Paged attention",
        (_LLAMA, _GPT_OSS, _GPT_OSS_WINDOW),
    ),
    _benchmark(
        "attention_paged_fp8",
        "fp8",
        "B64H8K1N1L8192D128P16",
        "Paged attention, fp8 cache",
    ),
    _benchmark(
        "attention_paged_int8",
        "i8",
        "B64H8K1N1L8192D128P16",
        "Paged attention, int8 cache, one scale per key",
    ),
)
