# SPDX-License-Identifier: MIT
"""The router of one expert with its product, whose kernels are those of gemm and router: hipkittens/routing.py has the function."""

from __future__ import annotations

import torch

from ..routing import router_top1
from ._record import DTYPES, Benchmark, Checks, Example, Function, Operation, Parity, ParityProblem
from ._tensors import with_gaps


def _in_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).max(-1, keepdim=True).values.sigmoid()


def _parity(case, generator) -> ParityProblem:
    dtype = DTYPES[case["dtype"]]
    x = torch.randn(case["tokens"], case["features"], generator=generator).to(dtype)
    w = torch.randn(case["features"], case["experts"], generator=generator) / case["features"] ** 0.5
    return ParityProblem(
        inputs={"x": with_gaps(x, *case["gaps"]), "w": w.to(dtype)},
        ours=lambda x, w: router_top1(x, w, shared=case["shared"])[0][..., :1],
        theirs=_in_torch,
        baseline="PyTorch's product in the inputs' dtype, and sigmoid",
        outputs=("weights",),
    )


def _call(problem, device):
    e = problem.extents
    x = problem.tensor(device, e["tokens"], e["features"])
    w = problem.tensor(device, e["features"], e["experts"])
    return lambda: router_top1(x, w)


def _bytes(problem) -> float:
    e = problem.extents
    return 2.0 * e["features"] * (e["tokens"] + e["experts"]) + 8.0 * e["tokens"]


def _checks() -> Checks:
    return Checks(
        examples=(
            Example(
                "router_top1", {"x": (32, 256), "w": (256, 16)}, lambda x, w: router_top1(x, w)[0], _in_torch
            ),
        ),
        parity=(
            Parity(
                "router_top1",
                {
                    "dtype": tuple(name for name, dtype in DTYPES.items() if dtype.itemsize == 2),
                    "tokens": (5, 1, 17, 255),
                    "features": (256, 1, 17, 130, 2048),
                    "experts": (16, 1, 2, 60, 128),
                    "shared": (0, 1),
                    "gaps": ((0, 0), (2, 2), (1, 0)),
                },
                _parity,
            ),
        ),
        calls=lambda tensor: [
            ("Llama 4's, a shared expert", "router_top1", (tensor(4, 64), tensor(64, 16)), {"shared": 1}),
            ("more experts than a wave holds", "router_top1", (tensor(4, 64), tensor(64, 2048)), {}),
        ],
        benchmarks=(
            Benchmark(
                "router_top1",
                example="8192x5120x128",
                extents=("tokens", "features", "experts"),
                shapes="64x5120x16,8192x5120x16,8192x5120x128",
                heading="Router of one expert, with its product",
                bytes=_bytes,
                call=_call,
            ),
        ),
    )


OPERATION = Operation(
    name="router_top1",
    folder="gemm",
    functions=(
        Function(
            router_top1, lambda tensor, dtype: (tensor(8, 64, dtype=dtype), tensor(64, 16, dtype=dtype))
        ),
    ),
    operators=(),
    checks=_checks,
    uses=("gemm", "router"),
)
