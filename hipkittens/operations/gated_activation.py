# SPDX-License-Identifier: MIT
"""The record of gated activations (SwiGLU, GeGLU): one half of a row, activated, times the other half."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..activation import ACTIVATIONS, GATES, activation, gated_activation, gated_in_torch
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
    Table,
    Trial,
    no_double_backward,
)
from ._sharding import rowwise
from ._tables import MEMORY_BOUND_SIZES
from ._tensors import draw, with_gaps

# The trials run every activation of a kernel, clamped ones too.
_LIMIT = 2.0


def _fake(x, other, bias, activation, alpha, limit):
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2) if other is None else x.shape)


def _setup(ctx, inputs, output) -> None:
    x, other, bias, *ctx.options = inputs
    ctx.save_for_backward(x, other, bias)


@_backend.interruptible
def _backward(ctx, dy):
    x, other, bias = ctx.saved_tensors
    dx, dother = call("gated_activation_backward", dy, x, other, bias, *ctx.options)
    dbias = None
    if bias is not None and ctx.needs_input_grad[2]:
        parts = (dx,) if other is None else (dx, dother)
        sums = [part.reshape(-1, part.shape[-1]).sum(0, dtype=torch.float32) for part in parts]
        dbias = torch.cat(sums).to(bias.dtype)
    return dx, None if other is None else dother, dbias, None, None, None


def _backward_fake(dy, x, other, *rest):
    return x.new_empty(x.shape), x.new_empty((0,) if other is None else x.shape)


def _backward_sharding(dy, x, other, *rest):
    from torch.distributed.tensor import Replicate

    found = rowwise(3, 2)(dy, x, other, *rest)
    if other is None:  # the second result is empty
        found = [([results[0], Replicate()], arguments) for results, arguments in found]
    return found


def _trial(kernel) -> Trial:
    element, gated = kernel.row["element"], kernel.row["gated"] == "true"
    # Rows that do not end with a thread's eight columns.
    rows, columns = 9, 515 if element == "f32" else 514

    def run():
        x = draw(rows, (2 if gated else 1) * columns, dtype=DTYPES[element])
        results = []
        for kind in GATES if gated else ACTIVATIONS:
            y = gated_activation(x, kind, limit=_LIMIT) if gated else activation(x, kind)
            results += [y, *torch.autograd.grad(y, x, draw(*y.shape, dtype=y.dtype).detach())]
        if gated:
            bias = draw(2 * columns, dtype=x.dtype)
            y = gated_activation(x, bias=bias)
            results += [y, *torch.autograd.grad(y, (x, bias), draw(*y.shape, dtype=y.dtype).detach())]
        return results

    return Trial(f"{'gated_' if gated else ''}activation {rows}x{columns} {element}", run)


def _parity(case, generator) -> ParityProblem:
    x = torch.randn(case["rows"], 2 * case["columns"], generator=generator) * case["magnitude"]
    x = with_gaps(x.to(DTYPES[case["dtype"]]), *case["gaps"])
    kind, limit = case["kind"], case["limit"]
    inputs = {"x": x}
    if case["bias"]:
        inputs["bias"] = torch.randn(2 * case["columns"], generator=generator).to(x.dtype)

    def theirs(x, bias=None):
        wide = (lambda value: value) if x.dtype == torch.float64 else torch.Tensor.float
        added = None if bias is None else wide(bias)
        return gated_in_torch(wide(x), kind, limit, bias=added).to(x.dtype)

    return ParityProblem(
        inputs=inputs,
        ours=lambda x, bias=None: gated_activation(x, kind, limit=limit, bias=bias),
        theirs=theirs,
        baseline="PyTorch's operations in float32, rounded once",
    )


def _call(problem, device):
    x = problem.tensor(device, problem["rows"], problem["columns"])
    return lambda: gated_activation(x)


def _checks() -> Checks:
    return Checks(
        trial=_trial,
        examples=(
            Example("gated activation", {"x": (64, 1024)}, gated_activation, gated_in_torch),
            Example(
                "gated activation, gpt-oss",
                {"x": (64, 1030)},
                lambda x: gated_activation(x, "swiglu"),
                lambda x: gated_in_torch(x, "swiglu"),
            ),
            Example(
                "gated activation, bias",
                {"x": (64, 1030), "bias": (1030,)},
                lambda x, bias: gated_activation(x, bias=bias),
                lambda x, bias: gated_in_torch(x, bias=bias),
            ),
        ),
        parity=(
            Parity(
                "gated_activation",
                {
                    "dtype": tuple(DTYPES),
                    "kind": GATES,
                    "limit": (None, 1.5),
                    "bias": (False, True),
                    "columns": (512, 1, 2, 6, 17, 255, 257, 514, 1030, 22016),
                    "rows": (3, 1, 40),
                    "magnitude": (1.0, 10.0),
                    "gaps": ((0, 0), (2, 2), (1, 0)),
                },
                _parity,
            ),
        ),
        calls=lambda tensor: [
            ("gelu_tanh", "gated_activation", (tensor(4, 96),), {"kind": "gelu_tanh"}),
            ("gpt-oss", "gated_activation", (tensor(4, 96),), {"kind": "swiglu", "limit": 7.0}),
            (
                "gate and other in separate tensors",
                "gated_activation",
                (tensor(4, 96),),
                {"kind": "gelu_tanh", "other": tensor(4, 96)},
            ),
            (
                "bias",
                "gated_activation",
                (tensor(4, 96),),
                {"kind": "swiglu", "bias": tensor(96)},
            ),
            ("alpha with gelu", "gated_activation", (tensor(4, 96),), {"kind": "gelu", "alpha": 1.7}),
            ("float64", "gated_activation", (tensor(4, 96, dtype=torch.float64),), {}),
        ],
        benchmarks=(
            Benchmark(
                "gated_activation",
                example="16384x16384",
                extents=("rows", "columns"),
                shapes="16384x2048,16384x4096,16384x8192",
                heading="Gated activation",
                bytes=lambda problem: 3.0 * problem["rows"] * problem["columns"],
                call=_call,
                tables=(
                    Table("Gated activation of rows of 2048, batch 16", "{rows}x2048", MEMORY_BOUND_SIZES),
                ),
            ),
        ),
    )


OPERATION = Operation(
    name="gated_activation",
    folder="activation",
    functions=(Function(gated_activation, lambda tensor, dtype: (tensor(32, 128, dtype=dtype),)),),
    operators=(
        Operator("gated_activation", _fake, _backward, _setup, sharding=rowwise(2), first_option=3),
        Operator(
            "gated_activation_backward",
            _backward_fake,
            no_double_backward("gated_activation"),
            sharding=_backward_sharding,
            first_option=4,
        ),
    ),
    checks=_checks,
)
