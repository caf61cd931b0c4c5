# SPDX-License-Identifier: MIT
"""Parity and benchmarks of latent attention to lists of keys."""

from __future__ import annotations

import torch

from .._latent_rows import LATENT, ROTARY, SCALED_ROW_BYTES, scaled_rows_of
from ..quantization import dtype_of
from ..sparse_latent_attention import attention_mla_sparse
from ._attention_sparse_problems import SparseProblem, draw_sparse, sparse_in_float
from ._record import DTYPES, Benchmark, Parity, ParityProblem, Table
from ._tables import of_batches

# For heads of 128 + 64 features before absorption, as in DeepSeek V3.
SCALE = 192**-0.5
FEATURES = LATENT + ROTARY
_FACTORS = {
    "dtype": ("bf16", "f16"),
    "cache": ("16", "fp8", "scaled rows"),
    "page": (64, 1, 16, 5),
    "heads": (16, 1, 3, 128),
    "length": (200, 0, 1, 17, 255, 257),
    "counted": (False, True),
    "sinks": (False, True),
    "num_splits": (0, 1, 7),
}


def _parity_problem(case, generator) -> ParityProblem:
    quantized, scaled_rows = case["cache"] == "fp8", case["cache"] == "scaled rows"
    dtype = torch.bfloat16 if scaled_rows else DTYPES[case["dtype"]]
    lengths = [case["length"], 70, 0, 33]
    problem = draw_sparse(
        lengths,
        300,
        heads=case["heads"],
        page=case["page"],
        dtype=dtype,
        cache_dtype=dtype_of("fp8", torch.device("cpu")) if quantized else None,
        scaled_rows=scaled_rows,
        generator=generator,
    )
    options = {"scale": SCALE}
    if quantized:
        options["kv_scale"] = torch.rand(1, generator=generator) + 0.5
    if case["sinks"]:
        options["sinks"] = torch.randn(case["heads"], generator=generator)
    if case["counted"]:
        options["topk_length"] = torch.tensor([250, 300, 20, 0], dtype=torch.int32)

    def ours(q):
        return attention_mla_sparse(
            q.detach(), problem.kv_cache, problem.indices, num_splits=case["num_splits"], **options
        )

    def theirs(q):
        wide = q.dtype if q.dtype == torch.float64 else None
        return sparse_in_float(SparseProblem(q.detach(), problem.kv_cache, problem.indices), wide, **options)[
            0
        ]

    return ParityProblem(
        inputs={"q": problem.q},
        ours=ours,
        theirs=theirs,
        baseline="PyTorch's operations in float32, rounded once",
        outputs=("out",),
    )


PARITY = Parity("attention_mla_sparse", _FACTORS, _parity_problem)


def _call(problem, device, scaled_rows=False):
    e = problem.extents
    keys = e["L"]
    cache = problem.tensor(device, -(-keys // 64), 64, FEATURES)
    if scaled_rows:
        cache = scaled_rows_of(cache)
    generator = torch.Generator().manual_seed(0)
    lists = torch.randint(keys, (e["B"], e["N"]), generator=generator).to(torch.int32).to(device)
    q = problem.tensor(device, e["B"], e["H"], FEATURES)
    return lambda: attention_mla_sparse(q, cache, lists, scale=SCALE)


def _bytes(problem, row_bytes: int) -> float:
    """Rows of the cache that are listed, the lists, queries and results."""
    queries = 2 * problem["H"] * (FEATURES + LATENT)
    return float(problem["B"] * (problem["N"] * (row_bytes + 4) + queries))


def _benchmark(name: str, heading: str, row_bytes: int, scaled_rows: bool) -> Benchmark:
    return Benchmark(
        name,
        example="B64H16N2048L65536",
        letters="BHNL",
        # DeepSeek V3.2, tokens of 64 sequences, each with a list of 2048 of 65536 keys: on 8 GPUs, and with the heads of a layer on one.
        shapes="B64H16N2048L65536,B64H128N2048L65536",
        heading=heading,
        bytes=lambda problem: _bytes(problem, row_bytes),
        flops=lambda problem: 2.0 * (FEATURES + LATENT) * problem["H"] * problem["B"] * problem["N"],
        call=lambda problem, device: _call(problem, device, scaled_rows),
        tables=tuple(
            Table(
                f"DeepSeek V3.2, {heads} heads, 2,048 of 65,536 keys",
                f"B{{N}}H{heads}N2048L65536",
                of_batches(1, 64),
            )
            for heads in (16, 128)
        ),
    )


BENCHMARKS = (
    _benchmark(
        "attention_mla_sparse",
        "Multi-head latent attention, per-token lists of keys",
        2 * FEATURES,
        scaled_rows=False,
    ),
    _benchmark(
        "attention_mla_sparse_fp8",
        "Multi-head latent attention, per-token lists of 8-bit keys with scales in their rows",
        SCALED_ROW_BYTES,
        scaled_rows=True,
    ),
)
