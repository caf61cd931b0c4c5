# SPDX-License-Identifier: MIT
"""Checks of latent attention: problems for each kernel, examples, parity, benchmarks."""

from __future__ import annotations

import torch

from .._latent_rows import SCALED_ROW_BYTES
from ..latent_attention import LATENT, attention_mla
from ..quantization import dtype_of
from ..sparse_latent_attention import attention_mla_sparse
from ._attention_paged_problems import UNUSED, LatentProblem, draw_latent, latent_in_float
from ._attention_sparse_checks import BENCHMARKS, FEATURES, PARITY, SCALE
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Table, Trial
from ._tables import of_batches


def _trial(kernel: Kernel) -> Trial:
    """Sequences of several iterations of each wave with a partial tile at the end, and one without keys."""
    row = kernel.row
    scaled_rows = row["scaling"] == "in_rows"
    dtype, quantized = DTYPES[row["element"]], row["cache"] == "fp8" and not scaled_rows
    page = 5
    heads = 40 if row["row_tiles"] != "1" else 7

    def run():
        problem = draw_latent(
            [300, 0, 33],
            2,
            heads=heads,
            page=page,
            dtype=dtype,
            cache_dtype=dtype_of("fp8", torch.device("cpu")) if quantized else None,
            scaled_rows=scaled_rows,
        )
        results = []
        for splits in (1, 2):
            out, lse = attention_mla(
                *problem.arguments(),
                scale=SCALE,
                sinks=torch.linspace(-2, 2, heads),
                kv_scale=torch.tensor([0.5]) if quantized else None,
                num_splits=splits,
                return_lse=True,
            )
            results += [out, lse.clamp(min=-100)]  # -inf of the sequence without keys
        return results

    return Trial(
        f"attention_mla 2 of 300 H{heads} page {page} {row['element']} of {row['cache']}{', scales in rows' * scaled_rows}",
        run,
        workgroups=4,
    )


def _example(queries: int, heads: int, page: int) -> Example:
    """The first rows of the input are the queries, the others fill the cache."""
    lengths = (100, 257)
    pages = [-(-length // page) for length in lengths]
    count = len(lengths) * queries * heads

    def problem_of(rows: torch.Tensor) -> LatentProblem:
        q = rows[:count].reshape(len(lengths) * queries, heads, FEATURES)
        cache = rows[count:].reshape(sum(pages), page, FEATURES)
        order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(0)).to(torch.int32)
        table = torch.full((2, max(pages)), UNUSED, dtype=torch.int32)
        table[0, : pages[0]], table[1, : pages[1]] = order.split(pages)
        used = torch.tensor(lengths, dtype=torch.int32, device=rows.device)
        return LatentProblem(q, cache, table.to(rows.device), used, None, queries)

    return Example(
        f"attention_mla, {queries} tokens of {heads} heads, pages of {page}",
        {"rows": (count + sum(pages) * page, FEATURES)},
        lambda rows: attention_mla(*problem_of(rows).arguments(), scale=SCALE),
        lambda rows: latent_in_float(problem_of(rows), scale=SCALE)[0],
        gradients=False,
    )


_FACTORS = {
    "dtype": ("bf16", "f16"),
    "cache": ("16", "fp8", "scaled rows"),
    "page": (64, 1, 16, 544, 5),
    "heads": (16, 1, 3, 5, 8, 128),
    "queries": (1, 2, 4, 17),
    "length": (200, 0, 1, 17, 255, 257),
    "causal": (True, False),
    "sinks": (False, True),
    "num_splits": (0, 1, 7),
}


def _parity_problem(case, generator) -> ParityProblem:
    quantized, scaled_rows = case["cache"] == "fp8", case["cache"] == "scaled rows"
    dtype = torch.bfloat16 if scaled_rows else DTYPES[case["dtype"]]
    problem = draw_latent(
        [case["length"], 70, case["page"], case["page"] + 1],
        [case["queries"], 1, 2, 1],
        heads=case["heads"],
        page=case["page"],
        dtype=dtype,
        cache_dtype=dtype_of("fp8", torch.device("cpu")) if quantized else None,
        scaled_rows=scaled_rows,
        generator=generator,
    )
    options = {"scale": SCALE, "causal": case["causal"]}
    if quantized:
        options["kv_scale"] = torch.rand(1, generator=generator) + 0.5
    if case["sinks"]:
        options["sinks"] = torch.randn(case["heads"], generator=generator)

    def with_rows(q: torch.Tensor) -> LatentProblem:
        return LatentProblem(q, *problem.arguments()[1:])

    def ours(q):
        return attention_mla(*with_rows(q.detach()).arguments(), num_splits=case["num_splits"], **options)

    def theirs(q):
        wide = q.dtype if q.dtype == torch.float64 else None
        return latent_in_float(with_rows(q.detach()), wide, **options)[0]

    return ParityProblem(
        inputs={"q": problem.q},
        ours=ours,
        theirs=theirs,
        baseline="PyTorch's operations in float32, rounded once",
        outputs=("out",),
    )


def _call(problem, device):
    e = problem.extents
    pages = -(-e["L"] // e["P"])
    cache = problem.tensor(device, e["B"] * pages, e["P"], FEATURES)
    order = torch.randperm(e["B"] * pages, generator=torch.Generator().manual_seed(0)).to(torch.int32)
    table = order.reshape(e["B"], pages).to(device)
    lengths = torch.full((e["B"],), e["L"], dtype=torch.int32, device=device)
    q = problem.tensor(device, e["B"] * e["N"], e["H"], FEATURES)
    return lambda: attention_mla(q, cache, table, lengths, None, e["N"], scale=SCALE)


def _bytes(problem) -> float:
    """Rows of the cache, queries and results."""
    e = problem.extents
    return 2.0 * e["B"] * (e["L"] * FEATURES + e["N"] * e["H"] * (FEATURES + LATENT))


def _calls(tensor):
    table, lengths = tensor(3, 3, dtype=torch.int32), tensor(3, dtype=torch.int32)
    q, cache = tensor(3, 16, FEATURES), tensor(9, 64, FEATURES)
    narrow, number = tensor(9, 64, FEATURES, dtype=torch.uint8), tensor(1, dtype=torch.float32)
    usual = {"scale": SCALE}
    packed = (tensor(20, 16, FEATURES), cache, table, lengths, tensor(4, dtype=torch.int32), 17)
    return [
        ("one token per sequence", "attention_mla", (q, cache, table, lengths), usual),
        ("several tokens, packed", "attention_mla", packed, usual),
        ("a cache with a dimension for its one head", "attention_mla", (q, cache.unsqueeze(2), table, lengths), usual),
        ("an fp8 cache", "attention_mla", (q, narrow, table, lengths), usual | {"kv_scale": number}),
        ("8-bit rows that contain their scales", "attention_mla", (q, tensor(9, 64, SCALED_ROW_BYTES, dtype=torch.uint8), table, lengths), usual),
        ("per-token lists of keys", "attention_mla_sparse", (q, cache, table), usual),
        ("per-token lists of keys in an fp8 cache", "attention_mla_sparse", (q, narrow, table), usual | {"kv_scale": number}),
        ("rows of 512", "attention_mla", (q[..., :512], cache[..., :512], table, lengths), usual),
    ]  # fmt: skip


def _exercise(draw):
    problem = draw_latent([20, 0, 33], 2, heads=4, dtype=draw(1).dtype)
    out = torch.zeros(6, 4, LATENT, dtype=problem.q.dtype)
    return [
        attention_mla(*problem.arguments(), scale=SCALE),
        attention_mla(*problem.arguments(), scale=SCALE, out=out, num_splits=2),
        attention_mla_sparse(problem.q, problem.kv_cache, problem.block_table.repeat(2, 1), scale=SCALE),
    ]


CHECKS = Checks(
    trial=_trial,
    examples=(_example(1, 16, 64), _example(2, 8, 1)),
    parity=(Parity("attention_mla", _FACTORS, _parity_problem), PARITY),
    calls=_calls,
    exercise=_exercise,
    benchmarks=(
        Benchmark(
            "attention_mla",
            example="B4H16N1L100000P64",
            letters="BHNLP",
            # DeepSeek V3 on 8 GPUs, and with the heads of a layer on one.
            shapes="B4H16N1L100000P64,B64H16N1L16384P64,B128H128N1L16384P64",
            heading="Multi-head latent attention, paged cache",
            bytes=_bytes,
            flops=lambda problem: (
                2.0 * (FEATURES + LATENT) * problem["B"] * problem["H"] * problem["N"] * problem["L"]
            ),
            call=_call,
            tables=(
                Table(
                    "DeepSeek V3, 16 heads, 16,384 keys per sequence",
                    "B{N}H16N1L16384P64",
                    of_batches(4, 64),
                ),
                Table(
                    "DeepSeek V3, 128 heads, 16,384 keys per sequence",
                    "B{N}H128N1L16384P64",
                    of_batches(4, 128),
                ),
            ),
        ),
        *BENCHMARKS,
    ),
)
