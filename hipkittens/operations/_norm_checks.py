# SPDX-License-Identifier: MIT
"""Checks of norms: problems for each kernel, examples, benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from ..norm import layer_norm, rms_norm
from . import _fused_norm_checks
from ._fused_norm_checks import fused_trial
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Rows, Table, Trial
from ._tables import MEMORY_BOUND_PEERS, MEMORY_BOUND_SIZES
from ._tensors import draw

_SHAPES = (
    (1024, 128),
    (2048, 512),
    (1024, 1024),
    (512, 2048),
    (256, 4096),
    (256, 8192),
    (8, 16384),
    (8, 32768),
    (8, 65536),
)
# For rows that are not whole vectors.
_ODD = (509, 1021, 2045, 4093)


def _run(dtype: torch.dtype, rows: int, columns: int) -> list[torch.Tensor]:
    """Every kernel for rows of this length."""
    x, weight, bias = (draw(*shape, dtype=dtype) for shape in ((rows, columns), (columns,), (columns,)))
    y = layer_norm(x, weight, bias)
    gradients = torch.autograd.grad(y, (x, weight, bias), draw(rows, columns, dtype=dtype).detach())
    with torch.no_grad():
        return [rms_norm(x, weight), layer_norm(x, None), y, *gradients]


def _run_kind(kind: str, dtype: torch.dtype, rows: int, columns: int) -> list[torch.Tensor]:
    x = draw(rows, columns, dtype=dtype)
    parameter = dtype if kind != "forward" else torch.float32 if dtype != torch.float32 else torch.bfloat16
    weight, bias = (draw(columns, dtype=parameter) for _ in range(2))
    # Stores of statistics between loads and their waits would hide an insufficient wait.
    with torch.set_grad_enabled(kind != "forward"):
        y = rms_norm(x, weight) if kind.endswith("rms") else layer_norm(x, weight, bias)
    if kind == "forward":
        return [y]
    leaves = (x, weight) if kind.endswith("rms") else (x, weight, bias)
    return [y, *torch.autograd.grad(y, leaves, draw(rows, columns, dtype=dtype).detach())]


def _trial_of(kernel: Kernel) -> Trial:
    """Columns of 8 rows are added by as many waves, which have one each; kernels with a loop over rows get 64."""
    kind, row = kernel.kind, kernel.row
    if kind == "fused":
        return fused_trial(kernel)
    name = row.get("element", "bf16")
    looped = kind in ("forward", "backward")
    columns = 65536 if kind == "columns" else 512
    if "chunks" in row:
        columns = 8 * int(row["lanes"]) * int(row["waves"]) * int(row["chunks"])
    if kind.startswith("odd"):
        columns -= 3
    rows = 2048 if kind == "reduce" else 64 if looped else 8
    return Trial(
        f"{'rms' if kind.endswith('rms') else 'layer'}_norm {rows}x{columns} {name}",
        partial(_run_kind, kind, DTYPES[name], rows, columns),
        shared_by="workers" if looped else "",
    )


def _representative() -> Iterator[Trial]:
    for name, dtype in DTYPES.items():
        for rows, columns in (*_SHAPES, *((64, columns) for columns in _ODD)):
            yield Trial(f"layer_norm {rows}x{columns} {name}", partial(_run, dtype, rows, columns))
    yield from _fused_norm_checks.representative()


def _every_kernel() -> Iterator[Trial]:
    for name, dtype in DTYPES.items():
        for columns in (*(columns for _, columns in _SHAPES), *_ODD):
            yield Trial(f"layer_norm {columns} {name}", partial(_run, dtype, 2, columns))
    yield from _fused_norm_checks.every_kernel()


def _layer_norm_in_torch(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def _rms_norm_in_torch(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


def _sizes(rows: Rows) -> str:
    """Of the kernels that support any row; the others are for some lengths."""
    largest = {}  # by dtype and target
    for target, of_target in rows.items():
        for row in of_target:
            if row["kind"] == "forward":
                columns = 8 * int(row["lanes"]) * int(row["waves"]) * int(row["chunks"])
                largest.setdefault((row["element"], target), set()).add(columns)
    (steps,) = {tuple(sorted(columns)) for columns in largest.values()}  # one line only if they agree
    named = ", ".join(map(str, steps))
    return f"Norms: rows of 1 to {steps[-1]} elements. Each row is read once. There are kernels for up to {named} elements."


def _calls(tensor):
    x, w = tensor(4, 96), tensor(96)
    return [
        (
            "residual, dropout, float32 weight",
            "layer_norm",
            (x, w.float()),
            {"residual": x, "dropout_p": 0.1},
        ),
        ("rows of 65537", "layer_norm", (tensor(2, 65537), None), {}),
    ]


def _rms_calls(tensor):
    x, w = tensor(4, 96), tensor(96)
    options = {"residual": x, "return_residual": True}
    return [
        ("weight only, residual returned", "rms_norm", (x, w), options),
        ("Gemma's weight, gate, padding", "rms_norm", (x, w), {"gemma": True, "gate": x, "pad_to": 64}),
    ]


def _bytes(tensors: int):
    return lambda problem: 2.0 * tensors * problem["rows"] * problem["columns"]


def _operands(problem, device):
    e = problem.extents
    x, weight, bias = (
        problem.tensor(device, *shape)
        for shape in ((e["rows"], e["columns"]), (e["columns"],), (e["columns"],))
    )
    return x, weight.requires_grad_(problem.training), bias


def _call_layer_norm(problem, device):
    x, weight, bias = _operands(problem, device)
    return lambda: layer_norm(x, weight, bias)


def _call_rms_norm(problem, device):
    x, weight, _ = _operands(problem, device)
    return lambda: rms_norm(x, weight)


def _call_gated_rms_norm(problem, device):
    x, weight, _ = _operands(problem, device)
    gate = problem.tensor(device, *x.shape)
    return lambda: rms_norm(x, weight, gate=gate)


def _call_backward(problem, device):
    x, weight, _ = _operands(problem, device)
    gradient, statistics = problem.tensor(device, *x.shape), torch.zeros(problem["rows"], device=device)
    return lambda: torch.ops.hipkittens.norm_backward(
        gradient, None, x, weight, statistics, statistics, 0.0, None, True, True
    )


def _call_torch_layer_norm(problem):
    x, weight, bias = _operands(problem, "cuda")
    return lambda: _layer_norm_in_torch(x, weight, bias)


def _call_torch_rms_norm(problem):
    x, weight, _ = _operands(problem, "cuda")
    return lambda: F.rms_norm(x, weight.shape, weight)


def _call_torch_backward(problem):
    leaves = [leaf.requires_grad_() for leaf in _operands(problem, "cuda")]
    y = _layer_norm_in_torch(*leaves)
    gradient = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, leaves, gradient, retain_graph=True)


_SHAPES_BY_DEFAULT = "16384x2048,16384x4096,16384x8192"
_EXTENTS = ("rows", "columns")


def _tables(title: str) -> tuple[Table, ...]:
    return (Table(title, "{rows}x2048", MEMORY_BOUND_SIZES, MEMORY_BOUND_PEERS),)


LAYER_NORM = Checks(
    trial=_trial_of,
    examples=(
        Example(
            "layer_norm",
            {"x": (256, 1024), "weight": (1024,), "bias": (1024,)},
            layer_norm,
            _layer_norm_in_torch,
        ),
    ),
    doctor=Example(
        "layer_norm", {"x": (48, 512), "weight": (512,), "bias": (512,)}, layer_norm, _layer_norm_in_torch
    ),
    parity=("parity_norm:LAYER_NORM",),
    calls=_calls,
    sizes=_sizes,
    benchmarks=(
        Benchmark(
            "layer_norm",
            example="32768x8192:training",
            shapes=_SHAPES_BY_DEFAULT,
            extents=_EXTENTS,
            bytes=_bytes(2),  # x, y
            call=_call_layer_norm,
            torch=_call_torch_layer_norm,
            training=True,
            heading="Layer norm",
            tables=_tables("Layer norm of 2048 features, batch 16"),
        ),
        Benchmark(
            "layer_norm_backward",
            example="32768x8192",
            shapes=_SHAPES_BY_DEFAULT,
            extents=_EXTENTS,
            bytes=_bytes(3),  # x, dy, dx
            call=_call_backward,
            torch=_call_torch_backward,
            heading="Layer norm backward",
        ),
    ),
    representative=_representative,
    every_kernel=_every_kernel,
    exercise=lambda draw: [layer_norm(draw(20, 64), draw(64, seed=3), draw(64, seed=4))],
)
RMS_NORM = Checks(
    examples=(
        Example(
            "rms_norm, residual",
            {"x": (64, 4096), "weight": (4096,), "residual": (64, 4096)},
            lambda x, weight, residual: rms_norm(x, weight, residual=residual),
            lambda x, weight, residual: _rms_norm_in_torch(x + residual, weight),
        ),
        Example(
            "rms_norm, gate, 1 + weight",
            {"x": (64, 256), "weight": (256,), "gate": (64, 256)},
            lambda x, weight, gate: rms_norm(x, weight, gate=gate, gemma=True),
            lambda x, weight, gate: _rms_norm_in_torch(x, 1 + weight) * F.silu(gate),
        ),
    ),
    doctor=Example("rms_norm", {"x": (48, 512), "weight": (512,)}, rms_norm, _rms_norm_in_torch),
    parity=("parity_norm:RMS_NORM",),
    calls=_rms_calls,
    benchmarks=(
        Benchmark(
            "rms_norm",
            example="32768x8192:training",
            shapes=_SHAPES_BY_DEFAULT,
            extents=_EXTENTS,
            bytes=_bytes(2),
            call=_call_rms_norm,
            torch=_call_torch_rms_norm,
            training=True,
            heading="RMS norm",
            tables=_tables("RMS norm of 2048 features, batch 16"),
        ),
        Benchmark(
            "gated_rms_norm",
            example="65536x128",
            shapes="65536x128,16384x2048,16384x8192",
            extents=_EXTENTS,
            bytes=_bytes(3),  # x, gate, y
            call=_call_gated_rms_norm,
            heading="Gated RMS norm",
        ),
    ),
    exercise=lambda draw: [rms_norm(x := draw(20, 64), draw(64, seed=3), residual=x, pad_to=96)],
)
