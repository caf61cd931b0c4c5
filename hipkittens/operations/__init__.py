# SPDX-License-Identifier: MIT
"""The operations of this package, each defined by one file that contains its record, OPERATION.

Every file in this folder whose name begins with a letter is an operation; there is no central list of them. The record determines

* the registration of shapes, derivatives, FLOP counts and DTensor strategies of its operators;
* the operations known to `hipkittens.supported`, `demo`, `doctor`, `kernels list --resources`, `bench`, `profile` and `trace`;
* docs/support.md, docs/performance.md, the lists in README.md and docs/api.md (`tools/operation_lists.py` writes them);
* the cases of benchmarks/parity.py, parity_kernels.py, mutation.py, startup.py, and of tools/wheel_probe.py.

A new operation is one file here, and an import of its functions in hipkittens/__init__.py, where type checkers look. Its kernels and its
torch binding are described in docs/adding_an_operation.md. All of such a file:

    import torch

    from .. import _backend
    from .._arguments import check_dtype_and_device, check_tensor
    from ._record import (
        DTYPES, Benchmark, Checks, Example, Function, Operation, Operator, Parity, ParityProblem, Table, Trial,
    )
    from ._sharding import rowwise

    # 1. The public function: checks with errors that state what is allowed, HIPKITTENS_BACKEND=torch, then the operator.
    @_backend.interruptible
    def scaled_square(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        \"\"\"scale * x * x, rounded once; x is float32, bfloat16 or float16.\"\"\"
        where = "hipkittens.scaled_square"
        check_tensor(where, "x", x)
        check_dtype_and_device(where, "x", x, tuple(DTYPES.values()), "x", x)
        _backend.check_device(where, "x", x)
        if _backend.uses_torch():
            return _reference(x, scale)
        return torch.ops.hipkittens.scaled_square(x, scale)

    def _reference(x, scale=1.0):
        return (scale * x * x).to(x.dtype)

    # 2. Shapes and derivatives of the operators, for autograd and torch.compile. Backward has torch.library's signature. For
    #    an operator without a second derivative, backward raises NotImplementedError.
    def _fake(x, scale):
        return x.new_empty(x.shape)

    def _backward_fake(grad, x, scale):
        return x.new_empty(x.shape)

    def _setup(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x)

    @_backend.interruptible
    def _backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.ops.hipkittens.scaled_square_backward(grad, x, ctx.scale), None

    # 3. What only checks, tables and tools need: built on first use, so heavy imports belong here.
    def _trial(kernel):
        \"\"\"A small problem that runs this row of variants.def.\"\"\"
        dtype = DTYPES[kernel.row["element"]]

        def run():
            x = torch.randn(9, 1030, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
            y = scaled_square(x)
            return y, *torch.autograd.grad(y, x, torch.ones_like(y))

        return Trial(f"scaled_square 9x1030 {kernel.row['element']}", run)

    def _parity(case, generator):
        x = torch.randn(case["rows"], case["columns"], generator=generator).to(DTYPES[case["dtype"]])
        return ParityProblem(
            inputs={"x": x},
            ours=lambda x: scaled_square(x, 0.3),
            theirs=lambda x: 0.3 * (x * x),  # the single baseline; in float64 it is also the reference
        )

    def _call(problem, device):
        x = problem.tensor(device, problem["rows"], problem["columns"])
        return lambda: scaled_square(x)

    def _checks():
        return Checks(
            trial=_trial,
            examples=(Example("scaled_square", {"x": (64, 512)}, scaled_square, _reference),),
            parity=(
                Parity(
                    "scaled_square",
                    {"dtype": tuple(DTYPES), "columns": (512, 1, 8, 515), "rows": (3, 1, 200)},
                    _parity,
                ),
            ),
            calls=lambda tensor: [
                ("a scale", "scaled_square", (tensor(4, 96),), {"scale": 0.5}),
                ("float64", "scaled_square", (tensor(4, 96, dtype=torch.float64),), {}),  # the page quotes the error
            ],
            benchmarks=(
                Benchmark(
                    "scaled_square", example="16384x8192", extents=("rows", "columns"),
                    shapes="16384x2048,16384x4096", heading="Scaled square",
                    bytes=lambda problem: 4.0 * problem["rows"] * problem["columns"], call=_call,
                    tables=(Table("Scaled square of 2048 features", "{rows}x2048", {"MI355X": (1024, 2048)}),),
                ),
            ),
        )

    OPERATION = Operation(
        name="scaled_square",
        folder="scaled_square",
        # arguments of a typical shape: for supported, docs/support.md, startup.py, and the wheel probe
        functions=(Function(scaled_square, lambda tensor, dtype: (tensor(32, 64, dtype=dtype),)),),
        operators=(
            Operator("scaled_square", _fake, _backward, _setup, sharding=rowwise(1), first_option=1),
            Operator("scaled_square_backward", _backward_fake, sharding=rowwise(2), first_option=2),
        ),
        checks=_checks,
    )

_record.py says what each field means. Then run `python tools/operation_lists.py` and `python tools/support_matrix.py`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from ._record import Benchmark, Checks, Operation


@functools.cache
def every() -> tuple[Operation, ...]:
    """Every operation, in the order of lists for readers."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    records = [importlib.import_module(f"{__name__}.{name}").OPERATION for name in names]
    return tuple(sorted(records, key=lambda operation: (operation.order, operation.name)))


def folders(operation: Operation) -> set[str]:
    """The folders of the kernels that its functions and their gradients launch."""
    by_name = {each.name: each for each in every()}
    found, waiting = set(), [operation.name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += by_name[name].uses
    return {by_name[name].folder for name in found}


@functools.cache
def checks(operation: Operation) -> Checks:
    """What checks, tables and tools need of an operation."""
    return operation.checks()


@functools.cache
def functions() -> dict[str, Callable[..., Any]]:
    """The public functions by name, in alphabetical order."""
    found = {each.name: each.function for operation in every() for each in operation.functions}
    return dict(sorted(found.items()))


@functools.cache
def benchmarks() -> dict[str, Benchmark]:
    """What `bench`, `profile` and `trace` run, by the names they accept."""
    return {each.name: each for operation in every() for each in checks(operation).benchmarks}
