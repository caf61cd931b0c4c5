# SPDX-License-Identifier: MIT
"""Checks of gathering and combining experts' rows: a problem for each kernel, examples, benchmarks."""

from __future__ import annotations

import torch

from ..experts import combined_in_torch, expert_combine, expert_gather, gathered_in_torch
from ..routing import expert_sort
from ._expert_sort_checks import draw_ids, drawn_experts
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Trial
from ._router_checks import refuse_experts
from ._tensors import draw, with_gaps


def order_of(tokens: int, k: int, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """entries and places, with some choices that are not those of an expert."""
    order = expert_sort(draw_ids(tokens, k, experts), None, experts, layout="ragged")
    return order.entries, order.places


def _trial(kernel: Kernel) -> Trial:
    """Six choices per token are more than are read at once; columns take several iterations of a wave, in vectors and not."""
    dtype = DTYPES[kernel.row["element"]]
    tokens, k, experts = 29, 6, 7

    def run():
        entries, places = order_of(tokens, k, experts)
        weights = draw(tokens, k, dtype=torch.float32)
        results = []
        for columns in (1032, 1027):
            if kernel.kind == "gather":
                function, rows = expert_gather, draw(tokens, columns, dtype=dtype)
            else:
                function, rows = expert_combine, draw(tokens * k, columns, dtype=dtype)
            with_weights, without = (
                function(rows, entries, places, weights),
                function(rows, entries, places),
            )
            results += [with_weights, without]
            if kernel.kind == "dot":
                results += torch.autograd.grad(with_weights.float().square().sum(), weights)
        return [result.detach() for result in results]

    return Trial(f"expert_rows {tokens}x{k} {kernel.kind} {kernel.row['element']}", run, workgroups=5)


def _order_in_torch(tokens: int, k: int, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`order_of`, on the CPU of any machine."""
    ids = draw_ids(tokens, k, experts).reshape(-1)
    known = (ids >= 0) & (ids < experts)
    entries = torch.where(known, ids, experts).argsort(stable=True).to(torch.int32)
    count = int(known.sum())
    places = torch.full_like(entries, -1)
    places[entries[:count].long()] = torch.arange(count, dtype=torch.int32)
    entries[count:] = -1
    return entries, places.view(tokens, k)


def _example(function, tokens: int, k: int, experts: int):
    index = _order_in_torch(tokens, k, experts)

    def run(rows, weights):
        return function(rows, *(each.to(rows.device) for each in index), weights)

    return run


def _parity(gather: bool):
    def problem(case, generator) -> ParityProblem:
        tokens, k, experts = (case[name] for name in ("tokens", "k", "experts"))
        ids = torch.randint(-1, experts + 1, (tokens, k), generator=generator, dtype=torch.int32)
        order = expert_sort(ids, None, experts, layout="ragged")
        rows = tokens if gather else tokens * k
        values = torch.randn(rows, case["columns"], generator=generator) * case["magnitude"]
        inputs = {"rows": with_gaps(values.to(DTYPES[case["dtype"]]), *case["gaps"])}
        if case["weights"]:
            inputs["weights"] = torch.rand(tokens, k, generator=generator).to(inputs["rows"].dtype)
        index = order.entries, order.places

        def theirs(rows, weights=None):
            return (gathered_in_torch if gather else combined_in_torch)(rows, *index, weights)

        return ParityProblem(
            inputs=inputs,
            ours=lambda rows, weights=None: (expert_gather if gather else expert_combine)(
                rows, *index, weights
            ),
            theirs=theirs,
            baseline="PyTorch's operations in float32, rounded once",
        )

    return Parity(
        "expert_gather" if gather else "expert_combine",
        {
            "dtype": tuple(DTYPES),
            "weights": (False, True),
            "tokens": (40, 1, 7, 257),
            "k": (2, 1, 8, 10),
            "experts": (8, 1, 128),
            "columns": (512, 1, 2, 17, 255, 257, 1030),
            "magnitude": (1.0, 10.0),
            "gaps": ((0, 0), (2, 2), (1, 0)),
        },
        problem,
    )


def _call(function):
    def call(problem, device):
        tokens, experts, k, columns = (problem[name] for name in ("tokens", "experts", "k", "columns"))
        order = expert_sort(drawn_experts(tokens, experts, k, device), None, experts, layout="ragged")
        rows = problem.tensor(device, tokens if function is expert_gather else tokens * k, columns)
        weights = None if function is expert_gather else torch.ones(tokens, k, device=device)
        return lambda: function(rows, order.entries, order.places, weights)

    return call


def _calls(tensor):
    entries, places = tensor(128, dtype=torch.int32), tensor(64, 2, dtype=torch.int32)
    weights = tensor(64, 2, dtype=torch.float32)
    return [
        ("Llama 4, weighted", "expert_gather", (tensor(64, 96), entries, places, weights), {}),
        ("unweighted sum", "expert_combine", (tensor(128, 96), entries, places), {}),
        ("float64", "expert_combine", (tensor(128, 96, dtype=torch.float64), entries, places), {}),
    ]


def _benchmark(function, heading: str) -> Benchmark:
    return Benchmark(
        function.__name__,
        example="8192x256x8x7168",
        extents=("tokens", "experts", "k", "columns"),
        shapes="64x256x8x7168,8192x256x8x7168,8192x128x8x2048",
        heading=heading,
        bytes=lambda problem: 2.0 * problem["tokens"] * (problem["k"] + 1) * problem["columns"],
        call=_call(function),
        refuse=refuse_experts,
        chained=True,
    )


CHECKS = Checks(
    trial=_trial,
    examples=(
        Example(
            "expert_gather",
            {"x": (100, 520), "weights": (100, 4)},
            _example(expert_gather, 100, 4, 16),
            _example(gathered_in_torch, 100, 4, 16),
        ),
        Example(
            "expert_combine",
            {"y": (400, 520), "weights": (100, 4)},
            _example(expert_combine, 100, 4, 16),
            _example(combined_in_torch, 100, 4, 16),
        ),
    ),
    parity=(_parity(True), _parity(False)),
    calls=_calls,
    benchmarks=(
        _benchmark(expert_gather, "Gather of rows in expert order"),
        _benchmark(expert_combine, "Weighted sums of experts' rows"),
    ),
)
