# SPDX-License-Identifier: MIT
"""Checks of topk: a problem for each kernel, examples, benchmarks."""

from __future__ import annotations

import torch

from ..selection import MOST, topk
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Rows, Table, Trial
from ._tensors import draw, with_gaps


def with_ties(x: torch.Tensor) -> torch.Tensor:
    """Every second row in steps of a half, so that the last selected element has equal ones that are not selected."""
    steps = torch.arange(x.shape[0])[:, None] % 2 == 1
    return torch.where(steps, (x * 2).round() / 2, x)


def _trial(kernel: Kernel) -> Trial:
    """A row that does not end with a lane's eight columns, and another in which many are equal; k too large for rows of one workgroup to be
    split.
    """
    name, waves = kernel.row["element"], int(kernel.row["waves"])
    columns = waves * int(kernel.row["chunks"]) * 512 - 3
    rows, k = (5, 20) if waves == 1 else (2, 260 if waves == 4 else 600)

    def run():
        x = with_ties(draw(rows, columns, dtype=DTYPES[name]).detach()).requires_grad_()
        values, indices = topk(x, k)
        return values, indices, *torch.autograd.grad(values, x, torch.ones_like(values))

    return Trial(f"topk {rows}x{columns} k {k} {name}", run, workgroups=2)


def _sorted_in_torch(x, k, largest):
    return x.sort(stable=True, dim=-1, descending=largest).values[..., :k]


def _parity(case, generator) -> ParityProblem:
    x = torch.randn(case["rows"], case["columns"], generator=generator)
    x = with_gaps((with_ties(x) if case["ties"] else x).to(DTYPES[case["dtype"]]), *case["gaps"])
    k, largest = max(1, round(case["share"] * case["columns"])), case["largest"]
    k = min(k, MOST)
    return ParityProblem(
        inputs={"x": x},
        ours=lambda x: topk(x, k, largest=largest)[0],
        theirs=lambda x: _sorted_in_torch(x, k, largest),
        baseline="PyTorch's stable sort, with ties in order of position like ours",
    )


def _call(problem, device):
    """Random keys, in float32 rounded to bfloat16: the time of the search depends on them."""
    e = problem.extents
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(e["rows"], e["columns"], device=device, generator=generator).bfloat16()
    return lambda: topk(x, e["k"])


def _call_torch(problem):
    x, k = problem.tensor("cuda", problem["rows"], problem["columns"]), problem["k"]
    return lambda: torch.topk(x, k)


def _refuse(extents):
    most = min(extents["columns"], MOST)
    return f"k is {extents['k']}; allowed: 1 to {most}" if extents["k"] > most else None


def _sizes(rows: Rows) -> str:
    columns = sorted(
        {512 * int(row["waves"]) * int(row["chunks"]) for of_target in rows.values() for row in of_target}
    )
    return (
        f"Top-k: rows of any length, in one pass of {', '.join(map(str, columns))} columns or in several parts of that size; "
        f"k from 0 to {MOST}."
    )


def _calls(tensor):
    x, ends = tensor(4, 96), tensor(4, dtype=torch.int32)
    return [
        ("smallest elements, along the first dimension", "topk", (x, 2), {"dim": 0, "largest": False}),
        ("rows with separate ends", "topk", (x, 8), {"row_ends": ends}),
        ("rows of 262144, unsorted", "topk", (tensor(2, 262144), MOST), {"sorted": False}),
        ("k above 2048", "topk", (tensor(2, 4096), 4096), {}),
    ]


CHECKS = Checks(
    trial=_trial,
    examples=(
        Example("topk", {"x": (16, 1024)}, lambda x: topk(x, 32)[0], lambda x: _sorted_in_torch(x, 32, True)),
    ),
    parity=(
        Parity(
            "topk",
            {
                "dtype": tuple(DTYPES),
                "columns": (1024, 1, 2, 7, 64, 511, 513, 1025, 4099, 20001),
                "rows": (3, 1, 5),
                "share": (0.03, 0.0, 0.4, 1.0),
                "largest": (True, False),
                "ties": (False, True),
                "gaps": ((0, 0), (2, 2), (1, 0)),
            },
            _parity,
        ),
    ),
    calls=_calls,
    sizes=_sizes,
    benchmarks=(
        Benchmark(
            "topk",
            example="4096x1024x32",
            extents=("rows", "columns", "k"),
            shapes="4096x256x10,4096x1024x32,4096x8192x32,64x131072x50",
            heading="Top-k",
            bytes=lambda problem: problem["rows"] * (2.0 * problem["columns"] + 10.0 * problem["k"]),
            call=_call,
            torch=_call_torch,
            refuse=_refuse,
            chained=True,
            tables=tuple(
                Table(
                    f"Top {k} of rows of {columns}",
                    f"{{N}}x{columns}x{k}",
                    {"MI325X": sizes, "MI355X": sizes},
                    {"triton": {"MI325X": 4096, "MI355X": 4096}},
                )
                for columns, k, sizes in ((256, 10, (1024, 4096)), (1024, 32, (4096,)))
            ),
        ),
    ),
)
