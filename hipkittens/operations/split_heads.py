# SPDX-License-Identifier: MIT
"""The record of split_heads, which shares its kernel with concat_heads; the functions are in hipkittens/heads.py."""

from __future__ import annotations

import torch

from ..heads import split_heads
from ._record import DTYPES, Benchmark, Checks, Example, Function, Operation, Operator, Parity, ParityProblem
from ._sharding import rowwise
from ._tensors import with_gaps


def _fake(qkv, q_size, kv_size):
    return tuple(qkv.new_empty((*qkv.shape[:-1], size)) for size in (q_size, kv_size, kv_size))


def _setup(ctx, inputs, output) -> None:
    pass


def _backward(ctx, dq, dk, dv):
    return torch.cat((dq, dk, dv), -1), None, None


def _parity(case, generator) -> ParityProblem:
    q, kv = case["q"], case["kv"]
    x = torch.randn(case["rows"], q + 2 * kv, generator=generator).to(DTYPES[case["dtype"]])
    return ParityProblem(
        inputs={"qkv": with_gaps(x, *case["gaps"])},
        ours=lambda qkv: split_heads(qkv, q, kv),
        theirs=lambda qkv: qkv.split((q, kv, kv), -1),
        outputs=("q", "k", "v"),
    )


def _call(problem, device):
    e = problem.extents
    qkv = problem.tensor(device, e["tokens"], e["q"] + 2 * e["kv"])
    return lambda: split_heads(qkv, e["q"], e["kv"])


def _checks() -> Checks:
    return Checks(
        examples=(
            Example(
                "split_heads",
                {"qkv": (64, 1280)},
                lambda qkv: split_heads(qkv, 1024, 128)[1],
                lambda qkv: qkv[:, 1024:1152],
            ),
        ),
        parity=(
            Parity(
                "split_heads",
                {
                    "dtype": tuple(DTYPES),
                    "q": (1024, 1, 8, 135),
                    "kv": (128, 1, 9, 64),
                    "rows": (3, 1, 40),
                    "gaps": ((0, 0), (2, 2), (1, 0)),
                },
                _parity,
            ),
        ),
        calls=lambda tensor: [("sizes that do not match", "split_heads", (tensor(4, 96), 64, 32), {})],
        benchmarks=(
            Benchmark(
                "split_heads",
                example="8192x4096x1024",
                extents=("tokens", "q", "kv"),
                shapes="8192x4096x1024",
                heading="Split of queries, keys and values",
                bytes=lambda problem: 4.0 * problem["tokens"] * (problem["q"] + 2 * problem["kv"]),
                call=_call,
            ),
        ),
    )


OPERATION = Operation(
    name="split_heads",
    folder="heads",
    functions=(Function(split_heads, lambda tensor, dtype: (tensor(32, 192, dtype=dtype), 128, 32)),),
    operators=(Operator("split_heads", _fake, _backward, _setup, sharding=rowwise(1, 3), first_option=1),),
    checks=_checks,
)
