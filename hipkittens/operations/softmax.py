# SPDX-License-Identifier: MIT
"""The record of softmax; the function is in hipkittens/softmax.py."""

from __future__ import annotations

from functools import partial

import torch

from .. import _backend
from .._call import call
from ..softmax import softmax
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
    Rows,
    Table,
    Trial,
    no_double_backward,
)
from ._sharding import rowwise
from ._tensors import draw, with_gaps

# For kernels whose rows share a wave: kernels/softmax/kinds.h.
_SHORT = 512
_TABLE_SIZES = {"MI325X": (4096, 16384, 65536), "MI355X": (4096, 16384, 65536)}


def _fake(x):
    return x.new_empty(x.shape)


def _setup(ctx, inputs, output) -> None:
    ctx.save_for_backward(output)


@_backend.interruptible
def _backward(ctx, dy):
    (y,) = ctx.saved_tensors
    return call("softmax_backward", dy, y)


def _backward_fake(dy, y):
    return y.new_empty(y.shape)


def _capacity(row) -> int:
    return 512 * int(row["waves"]) * int(row["chunks"]) if "waves" in row else _SHORT


def _trial(kernel: Kernel) -> Trial:
    """Rows of whole vectors, and rows that are not; the longest rows include some that no registers hold."""
    name, capacity = kernel.row["element"], _capacity(kernel.row)
    if capacity == _SHORT:
        shapes = ((70, 24), (70, 13))
    else:
        beyond = capacity == (32768 if "backward" in kernel.kind else 65536 if name == "f32" else 131072)
        columns = capacity + 8200 if beyond else capacity
        shapes = ((2, columns), (2, columns - 3))

    def run():
        results = []
        for shape in shapes:
            x = draw(*shape, dtype=DTYPES[name])
            y = softmax(x)
            results.append(y)
            if "backward" in kernel.kind:
                # Gradients of about one value, and none beyond float16.
                dy = draw(*shape, dtype=y.dtype).detach() * min(shape[1], 4096)
                results += torch.autograd.grad(y, x, dy)
        return results

    direction = "backward " if "backward" in kernel.kind else ""
    return Trial(f"softmax {direction}{shapes[0][0]}x{shapes[0][1]} {name}", run)


def _parity(case, generator) -> ParityProblem:
    x = torch.randn(case["rows"], case["columns"], generator=generator) * case["magnitude"]
    dim = case["dim"]
    return ParityProblem(
        inputs={"x": with_gaps(x.to(DTYPES[case["dtype"]]), *case["gaps"])},
        ours=lambda x: softmax(x, dim),
        theirs=lambda x: torch.softmax(x, dim),
    )


def _call(problem, device):
    x = problem.tensor(device, problem["rows"], problem["columns"])
    return lambda: softmax(x)


def _call_torch(problem):
    x = problem.tensor("cuda", problem["rows"], problem["columns"])
    return lambda: torch.softmax(x, -1)


def _call_backward(problem, device):
    y, dy = (problem.tensor(device, problem["rows"], problem["columns"]) for _ in range(2))
    return lambda: call("softmax_backward", dy, y)


def _call_torch_backward(problem):
    x, dy = (problem.tensor("cuda", problem["rows"], problem["columns"]) for _ in range(2))
    y = torch.softmax(x.requires_grad_(), -1)
    return lambda: torch.autograd.grad(y, x, dy, retain_graph=True)


def _bytes(tensors: int):
    return lambda problem: 2.0 * tensors * problem["rows"] * problem["columns"]


def _sizes(rows: Rows) -> str:
    largest = {
        (row["element"], row["kind"]): max(
            _capacity(other)
            for other in of_target
            if (other["element"], other["kind"]) == (row["element"], row["kind"])
        )
        for of_target in rows.values()
        for row in of_target
        if row["kind"].startswith("long")
    }
    forward = {element: columns for (element, kind), columns in largest.items() if kind == "long_forward"}
    (backward,) = {columns for (_, kind), columns in largest.items() if kind == "long_backward"}
    (wide,) = {columns for element, columns in forward.items() if element != "f32"}
    return (
        f"Softmax: rows of any length. Rows of up to {wide} elements ({forward['f32']} in float32) are read once, and in the gradient "
        f"rows of up to {backward}; longer rows are read twice."
    )


_EXTENTS, _SHAPES = ("rows", "columns"), "65536x128,16384x2048,16384x8192,2048x131072"


def _checks() -> Checks:
    return Checks(
        trial=_trial,
        examples=(Example("softmax", {"x": (64, 1000)}, softmax, partial(torch.softmax, dim=-1)),),
        parity=(
            Parity(
                "softmax",
                {
                    "dtype": tuple(DTYPES),
                    "columns": (512, 1, 2, 7, 64, 255, 257, 1030, 4096, 9001, 40000),
                    "rows": (3, 1, 40),
                    "dim": (-1, 0),
                    "magnitude": (1.0, 10.0),
                    "gaps": ((0, 0), (2, 2), (1, 0)),
                },
                _parity,
            ),
        ),
        calls=lambda tensor: [
            ("along the first dimension", "softmax", (tensor(4, 96), 0), {}),
            ("rows of 131072", "softmax", (tensor(2, 131072),), {}),
            ("float64", "softmax", (tensor(4, 96, dtype=torch.float64),), {}),
        ],
        sizes=_sizes,
        benchmarks=(
            Benchmark(
                "softmax",
                example="65536x128",
                extents=_EXTENTS,
                shapes=_SHAPES,
                heading="Softmax",
                bytes=_bytes(2),
                call=_call,
                torch=_call_torch,
                tables=(
                    Table(
                        "Softmax of rows of 128",
                        "{N}x128",
                        _TABLE_SIZES,
                        {"triton": {device: 65536 for device in _TABLE_SIZES}},
                    ),
                ),
            ),
            Benchmark(
                "softmax_backward",
                example="65536x128",
                extents=_EXTENTS,
                shapes=_SHAPES,
                heading="Softmax backward",
                bytes=_bytes(3),
                call=_call_backward,
                torch=_call_torch_backward,
                tables=(Table("Softmax backward of rows of 128", "{N}x128", _TABLE_SIZES),),
            ),
        ),
    )


OPERATION = Operation(
    name="softmax",
    folder="softmax",
    functions=(Function(softmax, lambda tensor, dtype: (tensor(32, 128, dtype=dtype),)),),
    operators=(
        Operator("softmax", _fake, _backward, _setup, sharding=rowwise(1)),
        Operator("softmax_backward", _backward_fake, no_double_backward("softmax"), sharding=rowwise(2)),
    ),
    checks=_checks,
)
