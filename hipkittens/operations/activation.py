# SPDX-License-Identifier: MIT
"""The record of activation, whose kernels it shares with gated_activation."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..activation import ACTIVATIONS, activation, in_torch
from ._record import (
    DTYPES,
    Benchmark,
    Checks,
    Example,
    Function,
    Operation,
    Operator,
    Parity,
    ParityProblem,
    no_double_backward,
)
from ._tensors import with_gaps


def _fake(x, kind):
    return x.new_empty(x.shape)


def _setup(ctx, inputs, output) -> None:
    x, ctx.kind = inputs
    ctx.save_for_backward(x)


@_backend.interruptible
def _backward(ctx, dy):
    (x,) = ctx.saved_tensors
    return call("activation_backward", dy, x, ctx.kind), None


def _backward_fake(dy, x, kind):
    return x.new_empty(x.shape)


def _elementwise(tensors: int):
    def strategies(*arguments):
        from torch.distributed.tensor import Replicate, Shard

        placements = [Replicate(), *(Shard(axis) for axis in range(len(arguments[0].shape)))]
        return [([placement], [*[placement] * tensors, None]) for placement in placements]

    return strategies


def _parity(case, generator) -> ParityProblem:
    x = torch.randn(case["rows"], case["columns"], generator=generator) * case["magnitude"]
    kind = case["kind"]

    def theirs(x):
        return in_torch(x if x.dtype == torch.float64 else x.float(), kind).to(x.dtype)

    return ParityProblem(
        inputs={"x": with_gaps(x.to(DTYPES[case["dtype"]]), *case["gaps"])},
        ours=lambda x: activation(x, kind),
        theirs=theirs,
        baseline="PyTorch's operations in float32, rounded once",
    )


def _call(problem, device):
    x = problem.tensor(device, problem["rows"], problem["columns"])
    return lambda: activation(x, "gelu")


def _checks() -> Checks:
    return Checks(
        examples=(
            Example(
                "activation", {"x": (64, 515)}, lambda x: activation(x, "gelu"), lambda x: in_torch(x, "gelu")
            ),
        ),
        parity=(
            Parity(
                "activation",
                {
                    "dtype": tuple(DTYPES),
                    "kind": ACTIVATIONS,
                    "columns": (512, 1, 2, 6, 17, 255, 257, 514, 1030, 22016),
                    "rows": (3, 1, 40),
                    "magnitude": (1.0, 10.0),
                    "gaps": ((0, 0), (2, 2), (1, 0)),
                },
                _parity,
            ),
        ),
        calls=lambda tensor: [("a gated kind", "activation", (tensor(4, 96), "swiglu"), {})],
        benchmarks=(
            Benchmark(
                "activation",
                example="16384x8192",
                extents=("rows", "columns"),
                shapes="16384x2048,16384x8192",
                heading="Activation",
                bytes=lambda problem: 4.0 * problem["rows"] * problem["columns"],
                call=_call,
            ),
        ),
    )


OPERATION = Operation(
    name="activation",
    folder="activation",
    functions=(Function(activation, lambda tensor, dtype: (tensor(32, 128, dtype=dtype), "gelu")),),
    operators=(
        Operator("activation", _fake, _backward, _setup, sharding=_elementwise(1), first_option=1),
        Operator(
            "activation_backward",
            _backward_fake,
            no_double_backward("activation"),
            sharding=_elementwise(2),
            first_option=2,
        ),
    ),
    checks=_checks,
)
