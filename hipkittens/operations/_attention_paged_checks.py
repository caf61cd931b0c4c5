# SPDX-License-Identifier: MIT
"""Checks of attention to a paged cache: problems for each kernel, examples, parity, benchmarks."""

from __future__ import annotations

import torch

from ..paged_attention import HEAD_SIZES, attention_paged, attention_paged_plan
from ..quantization import dtype_of
from ._attention_paged_benchmarks import BENCHMARKS
from ._attention_paged_problems import UNUSED, PagedProblem, draw_paged, draw_scales, in_layout, in_torch
from ._record import DTYPES, Checks, Example, Kernel, Parity, ParityProblem, Trial


def _trial(kernel: Kernel) -> Trial:
    """Sequences of several iterations of each wave with a partial tile at the end, and one without keys; options of the score. More splits
    are combined than the lanes of a row process in one iteration.
    """
    row = kernel.row
    dtype, codes = DTYPES[row["element"]], _codes(row.get("cache"))
    joins = kernel.kind == "combine"
    head_dim = int(row.get("head_dim", 256))
    grouped = row.get("grouped") == "true"
    page = 48 if grouped else 5
    queries = 3 if row.get("row_tiles") == "2" else 1
    heads = 14 if queries > 1 else 7

    def run():
        problem = draw_paged(
            [1500 if joins else 300, 0, 33],
            queries,
            heads=heads,
            key_heads=1,
            head_dim=head_dim,
            page=page,
            dtype=dtype,
            cache_dtype=codes,
            layout="asm" if grouped else "nhd",
        )
        options = {
            "alibi_slopes": torch.arange(heads) / 64,
            "sinks": torch.linspace(-2, 2, heads),
            "return_lse": True,
        }
        if codes:
            kind = "key" if row["scaling"] == "by_key" else "sequence"
            for seed, name in enumerate(("k_scale", "v_scale")):
                options[name] = draw_scales(problem, kind, "asm" if grouped else "nhd", seed)
        if grouped:
            options["cache_layout"] = "asm"
        results = []
        for splits in (45,) if joins else (1, 2):
            out, lse = attention_paged(*problem.arguments(), num_splits=splits, softcap=20.0, **options)
            results += [out, lse.clamp(min=-100)]  # -inf of the sequence without keys
        if joins:
            plan = attention_paged_plan(problem.seqused_k, 45)
            out, lse = attention_paged(
                *problem.arguments(), num_splits=45, plan=plan, softcap=20.0, **options
            )
            results += [out, lse.clamp(min=-100)]
        return results

    title = f"attention_paged {queries} of {1500 if joins else 300} H{heads} D{head_dim} page {page} {row['element']}"
    if codes:
        title += f" of {row['cache']}" + (", a scale of each key" if row["scaling"] == "by_key" else "")
    return Trial(title, run, workgroups=4)


def _codes(cache: str | None) -> torch.dtype | None:
    """The dtype of a quantized cache; None for one in the queries' dtype."""
    return {"fp8": dtype_of("fp8", torch.device("cpu")), "i8": torch.int8}.get(cache)


def _example(layout: str, queries: int, heads: int, key_heads: int, head_dim: int, page: int, **options):
    """The first rows of the input are the queries, the others fill the cache."""
    lengths = (100, 257)

    def problem_of(rows: torch.Tensor) -> PagedProblem:
        count = len(lengths) * queries
        q = rows[: count * heads].reshape(count, heads, head_dim)
        pages = [-(-length // page) for length in lengths]
        cells = rows[count * heads :].reshape(2, sum(pages), page, key_heads, head_dim)
        cells = [
            in_layout(each, layout, values).contiguous()
            for each, values in zip(cells, (False, True), strict=True)
        ]
        order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(0)).to(torch.int32)
        table = torch.full((2, max(pages)), UNUSED, dtype=torch.int32)
        table[0, : pages[0]], table[1, : pages[1]] = order.split(pages)
        device = rows.device
        return PagedProblem(
            q, cells[0], cells[1], table.to(device), torch.tensor(lengths, dtype=torch.int32, device=device), None, queries
        )  # fmt: skip

    count = (
        len(lengths) * queries * heads + 2 * sum(-(-length // page) for length in lengths) * page * key_heads
    )
    return Example(
        f"attention_paged, {heads} heads to {key_heads} of {head_dim}, pages of {page}, {layout}",
        {"rows": (count, head_dim)},
        lambda rows: attention_paged(*problem_of(rows).arguments(), cache_layout=layout, **options),
        lambda rows: in_torch(problem_of(rows), cache_layout=layout, **options)[0],
        gradients=False,
    )


_FACTORS = {
    "dtype": ("bf16", "f16"),
    "cache": ("16", "fp8", "i8"),
    "scales": ("all", "head", "sequence", "key"),
    "layout": ("nhd", "hnd", "paged", "asm"),
    "page": (16, 1, 64, 256, 544),
    "table": ("rows", "list"),
    "group": (8, 1, 4, 7, 10, 16, 64),
    "key_heads": (1, 2),
    "head_dim": HEAD_SIZES,
    "queries": (1, 2, 4, 17, 130),
    "length": (200, 0, 1, 17, 255, 257),
    "window": ((-1, -1), (63, 0), (5, 9)),
    "causal": (True, False),
    "softcap": (0.0, 5.0),
    "alibi": (False, True),
    "sinks": (False, True),
    "num_splits": (0, 1, 7),
    "planned": (False, True),
}


def _parity_problem(case, generator) -> ParityProblem:
    heads = case["group"] * case["key_heads"]
    # Groups of keys are of 8, or in 16 bytes.
    page = max(case["page"], 16) if case["layout"] in ("paged", "asm") else case["page"]
    lengths = [case["length"], 70, page, page + 1]
    problem = draw_paged(
        lengths,
        [case["queries"], 1, 2, 1],
        heads=heads,
        key_heads=case["key_heads"],
        head_dim=case["head_dim"],
        page=page,
        layout=case["layout"],
        dtype=DTYPES[case["dtype"]],
        cache_dtype=_codes(case["cache"]),
        generator=generator,
    )
    options = {
        "causal": case["causal"],
        "window_size": tuple(case["window"]),
        "softcap": case["softcap"],
        "cache_layout": case["layout"],
    }
    if case["alibi"]:
        options["alibi_slopes"] = 2.0 ** -torch.arange(1, heads + 1)
    if case["cache"] != "16":
        for seed, name in enumerate(("k_scale", "v_scale")):
            options[name] = draw_scales(problem, case["scales"], case["layout"], seed)
    if case["sinks"]:
        options["sinks"] = torch.randn(heads, generator=generator)

    def with_rows(q: torch.Tensor) -> PagedProblem:
        return PagedProblem(q, *problem.arguments()[1:])

    def ours(q):
        arguments = list(with_rows(q.detach()).arguments())
        starts = None
        if case["table"] == "list":
            table = arguments[3]
            starts = torch.arange(len(table), dtype=torch.int32) * table.shape[1]
            arguments[3] = table.flatten()
        plan, splits = None, case["num_splits"]
        if case["planned"]:
            splits = splits or 20
            plan = attention_paged_plan(problem.seqused_k, splits)
        return attention_paged(*arguments, table_starts=starts, num_splits=splits, plan=plan, **options)

    def theirs(q):
        wide = q.dtype if q.dtype == torch.float64 else None
        return in_torch(with_rows(q.detach()), wide, **options)[0]

    return ParityProblem(
        inputs={"q": problem.q},
        ours=ours,
        theirs=theirs,
        baseline="PyTorch's operations in float32, rounded once",
        outputs=("out",),
    )


def _calls(tensor):
    def integers(*shape):
        return tensor(*shape, dtype=torch.int32)

    caches = [tensor(9, 16, 2, 128) for _ in range(2)]
    table, lengths = integers(3, 3), integers(3)
    q, slopes = tensor(3, 8, 128), tensor(8, dtype=torch.float32)
    usual = (q, *caches, table, lengths)
    heads_first = [cache.transpose(1, 2) for cache in caches]
    scale = tensor(1, dtype=torch.float32)
    narrow = [tensor(9, 16, 2, 128, dtype=torch.uint8) for _ in range(2)]
    grouped = (tensor(9, 2, 16, 16, 8), tensor(9, 2, 2, 128, 8))
    integral = [tensor(9, 16, 2, 128, dtype=torch.int8) for _ in range(2)]
    of_keys = tensor(9, 2, 16, dtype=torch.float32)
    return [
        ("one token per sequence", "attention_paged", usual, {}),
        ("several tokens, packed", "attention_paged", (tensor(20, 8, 128), *usual[1:], integers(4), 17), {}),
        ("blocks of all sequences in one flat table", "attention_paged", (q, *caches, integers(9), lengths), {"table_starts": lengths}),
        ("cache layout `hnd`", "attention_paged", (q, *heads_first, table, lengths), {"cache_layout": "hnd"}),
        ("cache layout `asm`, groups of 16 bytes", "attention_paged", (q, *grouped, table, lengths), {"cache_layout": "asm"}),
        ("splits from a plan", "attention_paged", usual, {"num_splits": 7, "plan": integers(5)}),
        ("sinks and a sliding window", "attention_paged", usual, {"sinks": slopes, "window_size": (127, 0)}),
        ("softcap and ALiBi", "attention_paged", usual, {"softcap": 30.0, "alibi_slopes": slopes}),
        ("7 splits", "attention_paged", usual, {"num_splits": 7}),
        ("int8 caches, one scale per key", "attention_paged", (q, *integral, table, lengths), {"k_scale": of_keys, "v_scale": of_keys}),
        ("one scale per value, none per key", "attention_paged", (q, *integral, table, lengths), {"v_scale": of_keys}),
        ("fp8 caches", "attention_paged", (q, *narrow, table, lengths), {"k_scale": 0.5, "v_scale": scale}),
        ("a scale with 16-bit caches", "attention_paged", usual, {"k_scale": 0.5}),
        ("head size 96", "attention_paged", (tensor(3, 8, 96), *(cache[..., :96] for cache in caches), table, lengths), {}),
    ]  # fmt: skip


def _exercise(draw):
    problem = draw_paged([20, 0, 33], 2, heads=4, key_heads=2, head_dim=64, dtype=draw(1).dtype)
    out = torch.zeros_like(problem.q)
    return [
        attention_paged(*problem.arguments()),
        attention_paged(*problem.arguments(), out=out, num_splits=2),
        attention_paged_plan(problem.seqused_k, 8),
    ]


CHECKS = Checks(
    trial=_trial,
    examples=(
        _example("nhd", 1, 8, 1, 128, 16),
        _example("paged", 1, 8, 1, 128, 16),
        _example("hnd", 3, 8, 2, 64, 64, window_size=(99, 0), softcap=30.0),
    ),
    parity=(Parity("attention_paged", _FACTORS, _parity_problem),),
    calls=_calls,
    exercise=_exercise,
    benchmarks=BENCHMARKS,
)
