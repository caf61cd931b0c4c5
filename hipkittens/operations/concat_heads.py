# SPDX-License-Identifier: MIT
"""The record of concat_heads, which shares its kernel with split_heads; the functions are in hipkittens/heads.py."""

from __future__ import annotations

import torch

from ..heads import concat_heads, split_heads
from ._record import (
    DTYPES,
    Benchmark,
    Checks,
    Example,
    Function,
    Kernel,
    Operation,
    Operator,
    Parity,
    ParityProblem,
    Trial,
)
from ._sharding import replicated
from ._tensors import draw, with_gaps


def _fake(q1, q2, k1, k2):
    return tuple(
        first.new_empty((*first.shape[:-1], first.shape[-1] + second.shape[-1]))
        for first, second in ((q1, q2), (k1, k2))
    )


def _setup(ctx, inputs, output) -> None:
    ctx.columns = [value.shape[-1] for value in inputs]


def _backward(ctx, dq, dk):
    """Views: nothing is copied."""
    q1, q2, k1, k2 = ctx.columns
    return *dq.split((q1, q2), -1), *dk.split((k1, k2), -1)


def _sharding(q1, q2, k1, k2):
    """Any dimension but the last, of queries and keys alike where both have it."""
    from torch.distributed.tensor import Shard

    found = [replicated((q1, q2, k1, k2), 2)]
    for axis in range(min(len(q1.shape), len(k1.shape)) - 1):
        found.append(([Shard(axis)] * 2, [Shard(axis)] * 4))
    return found


def _trial(kernel: Kernel) -> Trial:
    def run():
        results = []
        for dtype in (torch.bfloat16, torch.float32):
            # Parts whose rows begin and end on 4 bytes, and parts whose rows do not.
            q1, q2, k1, k2 = (draw(9, columns, dtype=dtype).detach() for columns in (512, 66, 15, 8))
            results += concat_heads(q1, q2, k1, k2)
            results += split_heads(with_gaps(draw(9, 46, dtype=dtype).detach(), 3, 1), 20, 13)
        return results

    return Trial("concat_heads and split_heads 9x578", run)


def _parity(case, generator) -> ParityProblem:
    dtype = DTYPES[case["dtype"]]
    heads = {"q1": case["heads"], "q2": case["heads"], "k1": 1, "k2": 1}
    inputs = {}
    for name, count in heads.items():
        columns = case["first"] if name[1] == "1" else case["second"]
        value = torch.randn(3, count, columns, generator=generator).to(dtype)
        inputs[name] = with_gaps(value, *case["gaps"])
    return ParityProblem(
        inputs=inputs,
        ours=concat_heads,
        theirs=lambda q1, q2, k1, k2: (torch.cat((q1, q2), -1), torch.cat((k1, k2), -1)),
        outputs=("q", "k"),
    )


def _call(problem, device):
    e = problem.extents
    shapes = [(e["tokens"], count, e["first"]) for count in (e["heads"], 1)]
    q1, k1 = (problem.tensor(device, *shape) for shape in shapes)
    q2, k2 = (problem.tensor(device, *shape[:-1], e["second"]) for shape in shapes)
    return lambda: concat_heads(q1, q2, k1, k2)


def _checks() -> Checks:
    return Checks(
        trial=_trial,
        examples=(
            Example(
                "concat_heads",
                {"q1": (16, 8, 512), "q2": (16, 8, 64), "k1": (16, 1, 512), "k2": (16, 1, 64)},
                lambda *parts: concat_heads(*parts)[0],
                lambda q1, q2, k1, k2: torch.cat((q1, q2), -1) + 0 * (k1.sum() + k2.sum()),
            ),
        ),
        parity=(
            Parity(
                "concat_heads",
                {
                    "dtype": tuple(DTYPES),
                    "heads": (1, 16),
                    "first": (512, 1, 7, 64, 130),
                    "second": (64, 1, 9, 128),
                    "gaps": ((0, 0), (2, 2), (1, 0)),
                },
                _parity,
            ),
        ),
        calls=lambda tensor: [
            (
                "one key head",
                "concat_heads",
                (tensor(4, 16, 512), tensor(4, 16, 64), tensor(4, 1, 512), tensor(4, 1, 64)),
                {},
            ),
        ],
        benchmarks=(
            Benchmark(
                "concat_heads",
                example="4096x128x512x64",
                extents=("tokens", "heads", "first", "second"),
                shapes="4096x16x512x64,4096x128x512x64",
                heading="Concatenation of both parts of each head, one key head",
                bytes=lambda problem: (
                    4.0 * problem["tokens"] * (problem["heads"] + 1) * (problem["first"] + problem["second"])
                ),
                call=_call,
            ),
        ),
    )


OPERATION = Operation(
    name="concat_heads",
    folder="heads",
    functions=(
        Function(
            concat_heads,
            lambda tensor, dtype: (
                tensor(8, 4, 64, dtype=dtype),
                tensor(8, 4, 32, dtype=dtype),
                tensor(8, 1, 64, dtype=dtype),
                tensor(8, 1, 32, dtype=dtype),
            ),
        ),
    ),
    operators=(Operator("concat_heads", _fake, _backward, _setup, sharding=_sharding, first_option=4),),
    checks=_checks,
)
