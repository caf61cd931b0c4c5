# SPDX-License-Identifier: MIT
"""SwiGLU's and GeGLU's activation: one half of a row, activated, times the other half."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .. import _backend
from .._arguments import check_dtype_and_device, check_tensor
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
)
from ._sharding import rowwise
from ._tables import MEMORY_BOUND_SIZES
from ._tensors import draw, with_gaps

# In the order of the enumeration in csrc/kernels/activation/kinds.h.
KINDS = ("silu", "gelu_tanh")


@_backend.interruptible
def gated_activation(x: torch.Tensor, kind: str = "silu") -> torch.Tensor:
    """act(x[..., :d]) * x[..., d:] for rows of 2 d elements: vLLM's silu_and_mul and gelu_tanh_and_mul.

    kind: "silu", x / (1 + exp(-x)), or "gelu_tanh", torch.nn.functional.gelu(x, approximate="tanh"). x is float32, bfloat16
    or float16; everything is float32 until the result is rounded to x's dtype. Any d, and any leading dimensions.
    Raises TypeError or ValueError, before anything is launched, for what has no kernel.
    """
    where = "hipkittens.gated_activation"
    check_tensor(where, "x", x)
    check_dtype_and_device(where, "x", x, tuple(DTYPES.values()), "x", x)
    if x.dim() == 0:
        raise ValueError(f"{where}: x has shape (); it needs at least 1 dimension")
    if x.shape[-1] % 2:
        raise ValueError(
            f"{where}: rows of x have {x.shape[-1]} elements; they need an even number, the gate and what it multiplies"
        )
    if kind not in KINDS:
        raise ValueError(f"{where}: kind is {kind!r}; allowed: {', '.join(map(repr, KINDS))}")
    _backend.check_device(where, "x", x)
    if _backend.uses_torch():
        return _in_torch(x.float(), kind).to(x.dtype)
    return torch.ops.hipkittens.gated_activation(x, KINDS.index(kind))


def _in_torch(x: torch.Tensor, kind: str = "silu") -> torch.Tensor:
    gate, other = x.chunk(2, -1)
    return (F.silu(gate) if kind == "silu" else F.gelu(gate, approximate="tanh")) * other


def _fake(x, activation):
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _setup(ctx, inputs, output) -> None:
    x, ctx.activation = inputs
    ctx.save_for_backward(x)


@_backend.interruptible
def _backward(ctx, dy):
    (x,) = ctx.saved_tensors
    return torch.ops.hipkittens.gated_activation_backward(dy, x, ctx.activation), None


def _backward_fake(dy, x, activation):
    return x.new_empty(x.shape)


def _no_double_backward(ctx, *_grads):
    raise NotImplementedError(
        "hipkittens: the gradient of gated_activation cannot be differentiated again; "
        "use torch.nn.functional where double backward is needed"
    )


def _trial(kernel) -> Trial:
    element, kind = kernel.row["element"], kernel.row["activation"]
    # Rows that do not end with a thread's eight columns.
    rows, columns = 9, 2 * 515 if element == "f32" else 2 * 514

    def run():
        x = draw(rows, columns, dtype=DTYPES[element])
        y = gated_activation(x, kind)
        return y, *torch.autograd.grad(y, x, draw(*y.shape, dtype=y.dtype).detach())

    return Trial(f"gated_activation {rows}x{columns} {kind} {element}", run)


def _parity(case, generator) -> ParityProblem:
    x = torch.randn(case["rows"], 2 * case["columns"], generator=generator) * case["magnitude"]
    x = with_gaps(x.to(DTYPES[case["dtype"]]), *case["gaps"])
    kind = case["kind"]
    return ParityProblem(
        inputs={"x": x},
        ours=lambda x: gated_activation(x, kind),
        theirs=lambda x: _in_torch(x.to(torch.promote_types(x.dtype, torch.float32)), kind).to(x.dtype),
        baseline="PyTorch's operations in float32, rounded once",
    )


def _call(problem, device):
    x = problem.tensor(device, problem["rows"], problem["columns"])
    return lambda: gated_activation(x)


def _checks() -> Checks:
    return Checks(
        trial=_trial,
        examples=(
            Example("gated activation", {"x": (64, 1024)}, gated_activation, _in_torch),
            Example(
                "gated activation, gelu",
                {"x": (64, 1030)},
                lambda x: gated_activation(x, "gelu_tanh"),
                lambda x: _in_torch(x, "gelu_tanh"),
            ),
        ),
        parity=(
            Parity(
                "gated_activation",
                {
                    "dtype": tuple(DTYPES),
                    "kind": KINDS,
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
            ("gelu", "gated_activation", (tensor(4, 96),), {"kind": "gelu"}),
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
        Operator("gated_activation", _fake, _backward, _setup, sharding=rowwise(1), first_option=1),
        Operator(
            "gated_activation_backward",
            _backward_fake,
            _no_double_backward,
            sharding=rowwise(2),
            first_option=2,
        ),
    ),
    checks=_checks,
)
