# SPDX-License-Identifier: MIT
"""The record of a x + b; the function is in hipkittens/mul_add.py."""

from __future__ import annotations

import torch

from .. import _backend, _namespace
from ..mul_add import mul_add
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
from ._sharding import is_tensor
from ._tensors import draw, with_gaps


def _fake(x, a, b, number_a, number_b):
    return x.new_empty(x.shape)


def _into_fake(x, a, b, number_a, number_b, out):
    return None


def _setup(ctx, inputs, output) -> None:
    x, a, b, ctx.number_a, _ = inputs
    ctx.save_for_backward(None if a is None else x, a)
    ctx.of_b = None if b is None else (b.shape, b.dtype)


@_backend.interruptible
def _backward(ctx, dy):
    """By the operation itself, which is differentiable again; sums by PyTorch's."""
    x, a = ctx.saved_tensors
    product = _namespace.OPERATORS.mul_add
    dx = product(dy, a, None, ctx.number_a, 0.0) if ctx.needs_input_grad[0] else None
    da = db = None
    if ctx.needs_input_grad[1]:
        if a.shape == x.shape and a.dtype == x.dtype:
            da = product(dy, x, None, 0.0, 0.0)
        else:
            da = (dy.float() * x.float()).sum().to(a.dtype).reshape(a.shape)
    if ctx.needs_input_grad[2]:
        shape, dtype = ctx.of_b
        db = (
            dy
            if shape == dy.shape and dtype == dy.dtype
            else dy.sum(dtype=torch.float32).to(dtype).reshape(shape)
        )
    return dx, da, db, None, None


def _sharding(x, *rest):
    """Any dimension, with tensors of x's shape; others are replicated."""
    from torch.distributed.tensor import Replicate, Shard

    found = []
    for placement in (Replicate(), *(Shard(axis) for axis in range(len(x.shape)))):
        others = [
            None if not is_tensor(value) else placement if value.shape == x.shape else Replicate()
            for value in rest
        ]
        found.append(([placement], [placement, *others]))
    return found


def _in_torch(x, a, b):
    exact = x.dtype == torch.float64
    return (a if exact else a.float()) * (x if exact else x.float()) + (b if exact else b.float())


def _trial(kernel: Kernel) -> Trial:
    name = kernel.row["element"]
    dtype = DTYPES[name]
    # Rows that do not end with a thread's eight columns.
    rows, columns = 9, 515 if name == "f32" else 514

    def run():
        x, a, b = (draw(rows, columns, dtype=dtype).detach() for _ in range(3))
        one, gaps = torch.tensor([0.5]), with_gaps(x, 2, 2)
        return [mul_add(x, a.cos(), b), mul_add(gaps, one, -1.5), mul_add(x, 3.0, one.to(dtype))]

    return Trial(f"mul_add {rows}x{columns} {name}", run)


def _parity(case, generator) -> ParityProblem:
    dtype, shape = DTYPES[case["dtype"]], (case["rows"], case["columns"])

    def drawn(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    inputs = {"x": with_gaps(drawn(*shape), *case["gaps"])}
    for name in ("a", "b"):
        inputs[name] = drawn(1) if case[name] == "one" else with_gaps(drawn(*shape), *case["gaps"])
    return ParityProblem(
        inputs=inputs,
        ours=mul_add,
        theirs=lambda x, a, b: _in_torch(x, a, b).to(x.dtype),
        baseline="PyTorch's operations in float32, rounded once",
        magnitude=float(sum(value.double().abs().max() for value in inputs.values())),
    )


def _call(problem, device):
    x, a, b = (problem.tensor(device, problem["rows"], problem["columns"]) for _ in range(3))
    return lambda: mul_add(x, a, b)


def _call_torch(problem):
    x, a, b = (problem.tensor("cuda", problem["rows"], problem["columns"]) for _ in range(3))
    return lambda: torch.addcmul(b, x, a)


def _checks() -> Checks:
    return Checks(
        trial=_trial,
        examples=(
            Example(
                "mul_add",
                {"x": (64, 515), "a": (64, 515), "b": (64, 515)},
                mul_add,
                lambda x, a, b: _in_torch(x, a, b).to(x.dtype),
            ),
        ),
        parity=(
            Parity(
                "mul_add",
                {
                    "dtype": tuple(DTYPES),
                    "a": ("one", "each"),
                    "b": ("each", "one"),
                    "columns": (512, 1, 2, 6, 17, 255, 257, 514, 1030, 22016),
                    "rows": (3, 1, 40),
                    "gaps": ((0, 0), (2, 2), (1, 0)),
                },
                _parity,
            ),
        ),
        calls=lambda tensor: [
            ("Python numbers", "mul_add", (tensor(4, 96), 2.0, -1.0), {}),
            (
                "one float32 element for all",
                "mul_add",
                (tensor(4, 96), tensor(1, dtype=torch.float32), 1.0),
                {},
            ),
            ("one row for all rows", "mul_add", (tensor(4, 96), tensor(96), 1.0), {}),
        ],
        exercise=lambda draw: [
            mul_add(draw(20, 64), draw(1, seed=1), draw(20, 64, seed=2)),
            mul_add(draw(20, 64).detach(), 2.0, 1.0, out=torch.empty(20, 64, dtype=draw(1).dtype)),
        ],
        benchmarks=(
            Benchmark(
                "mul_add",
                example="16384x8192",
                extents=("rows", "columns"),
                shapes="16384x2048,16384x8192",
                heading="a x + b, three tensors",
                bytes=lambda problem: 8.0 * problem["rows"] * problem["columns"],
                call=_call,
                torch=_call_torch,
            ),
        ),
    )


OPERATION = Operation(
    name="mul_add",
    folder="mul_add",
    functions=(Function(mul_add, lambda tensor, dtype: (tensor(32, 128, dtype=dtype), 2.0, 1.0)),),
    operators=(
        Operator("mul_add", _fake, _backward, _setup, sharding=_sharding, first_option=3),
        Operator("mul_add_into", _into_fake, first_option=3),
    ),
    checks=_checks,
)
