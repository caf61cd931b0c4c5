# SPDX-License-Identifier: MIT
"""The record of merging two attention results; the function is in hipkittens/merged_attention.py."""

from __future__ import annotations

import torch

from ..merged_attention import attention_merge, merged_in_torch
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
    no_derivative,
)
from ._sharding import replicated


def _fake(out_a, lse_a, out_b, lse_b):
    return out_a.new_empty(out_a.shape), lse_a.new_empty(lse_a.shape)


def _sharding(out_a, lse_a, out_b, lse_b):
    """Any tokens, any heads."""
    from torch.distributed.tensor import Shard

    found = [replicated((out_a, lse_a, out_b, lse_b), 2)]
    for axis in (0, 1):
        rows, sums = Shard(axis), Shard(1 - axis)
        found.append(([rows, sums], [rows, sums, rows, sums]))
    return found


def _parts(tokens: int, heads: int, size: int, dtype: torch.dtype, generator: torch.Generator):
    """Some rows of either part, and of both, are without keys."""
    outs = [torch.randn(tokens, heads, size, generator=generator).to(dtype) for _ in range(2)]
    sums = [torch.randn(heads, tokens, generator=generator) * 4 for _ in range(2)]
    sums[0][:, ::3], sums[1][:, ::5] = -torch.inf, torch.inf
    return outs[0], sums[0], outs[1], sums[1]


def _trial(kernel: Kernel) -> Trial:
    name = kernel.row["element"]

    def run():
        parts = _parts(37, 5, 72, DTYPES[name], torch.Generator().manual_seed(0))
        out, lse = attention_merge(*parts)
        return [out, lse.clamp(min=-100)]  # -inf of rows without keys

    return Trial(f"attention_merge 37x5x72 {name}", run)


def _example(merge):
    def call(out_a, out_b):
        sums = [out.detach().float().mean(-1).T for out in (out_a, out_b)]
        return merge(out_a, sums[0], out_b, sums[1])[0]

    return call


def _parity_problem(case, generator) -> ParityProblem:
    out_a, lse_a, out_b, lse_b = _parts(
        case["tokens"], case["heads"], case["columns"], DTYPES[case["dtype"]], generator
    )

    def with_(merge):
        return lambda a, b: merge(a.detach(), lse_a, b.detach(), lse_b)[0]

    return ParityProblem(
        inputs={"a": out_a, "b": out_b},
        ours=with_(attention_merge),
        theirs=with_(merged_in_torch),
        baseline="PyTorch's operations in float32, rounded once",
        outputs=("out",),
    )


def _call(problem, device):
    outs = [problem.tensor(device, problem["tokens"], problem["heads"], problem["columns"]) for _ in range(2)]
    sums = [torch.zeros(problem["heads"], problem["tokens"], device=device) for _ in range(2)]
    return lambda: attention_merge(outs[0], sums[0], outs[1], sums[1])


def _calls(tensor):
    out, lse = tensor(9, 8, 128), tensor(8, 9, dtype=torch.float32)
    return [
        ("two partial results", "attention_merge", (out, lse, out, lse), {}),
        ("LSE with tokens first", "attention_merge", (out, lse.T, out, lse.T), {}),
    ]


def _exercise(draw):
    outs, sums = ([draw(*shape, seed=seed).detach() for seed in range(2)] for shape in ((9, 4, 32), (4, 9)))
    return [attention_merge(outs[0], sums[0].float(), outs[1], sums[1].float())[0]]


def _checks() -> Checks:
    return Checks(
        trial=_trial,
        examples=(
            Example(
                "attention_merge",
                {"out_a": (65, 8, 128), "out_b": (65, 8, 128)},
                _example(attention_merge),
                _example(merged_in_torch),
                gradients=False,
            ),
        ),
        parity=(
            Parity(
                "attention_merge",
                {
                    "dtype": tuple(DTYPES),
                    "tokens": (40, 1, 2, 17, 255, 257),
                    "heads": (8, 1, 3, 5),
                    "columns": (128, 8, 64, 72, 256),
                },
                _parity_problem,
            ),
        ),
        calls=_calls,
        benchmarks=(
            Benchmark(
                "attention_merge",
                example="8192x64x128",
                extents=("tokens", "heads", "columns"),
                shapes="64x64x128,8192x64x128",
                heading="Merge of two attention results",
                bytes=lambda problem: (6.0 * problem["columns"] + 12) * problem["tokens"] * problem["heads"],
                call=_call,
                refuse=lambda extents: None
                if extents["columns"] % 8 == 0
                else f"columns is {extents['columns']}; it has to be a multiple of 8",
            ),
        ),
        exercise=_exercise,
    )  # fmt: skip


def _arguments(tensor, dtype):
    out, lse = tensor(9, 4, 64, dtype=dtype), tensor(4, 9, dtype=torch.float32)
    return out, lse, out, lse


OPERATION = Operation(
    name="attention_merge",
    folder="paged_attention",
    kinds=("merge",),
    functions=(Function(attention_merge, _arguments),),
    operators=(
        Operator(
            "attention_merge",
            _fake,
            no_derivative("attention_merge", "hipkittens.attention_varlen"),
            sharding=_sharding,
            first_option=4,
        ),
    ),
    checks=_checks,
    order=4,
)
