# SPDX-License-Identifier: MIT
"""Trials of the kernels of norms with additional fused operations: every operand, every quantization."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ..norm import layer_norm, rms_norm
from ..norm_quantization import norm_quantize
from ..quantization import QuantSpec
from ._record import DTYPES, Kernel, Trial
from ._tensors import draw

_SPECS = (
    QuantSpec("fp8"),
    QuantSpec("int8", rounding="truncate", floor=2.0),
    QuantSpec("fp8", 128),
    QuantSpec("bf8", 64, layout="columns"),
    QuantSpec("mxfp4"),
    QuantSpec("mxfp4", scale_rule="round_up", rounding="away", layout="shuffled"),
    QuantSpec("int8", "tensor"),
)
# For kernels of any arguments: rows that are read in more than one iteration, and end inside a vector.
_COLUMNS = {"short": 1030, "long": 8774}


def _inputs(dtype: torch.dtype, rows: int, columns: int) -> dict[str, torch.Tensor]:
    shapes = {"x": (rows, columns), "residual": (rows, columns), "gate": (rows, columns)}
    vectors = dict.fromkeys(("weight", "bias", "x_bias"), (columns,))
    return {name: draw(*shape, dtype=dtype).detach() for name, shape in (shapes | vectors).items()}


def _run(dtype: torch.dtype, rows: int, columns: int, usual: bool) -> list[torch.Tensor]:
    inputs = _inputs(dtype, rows, columns)
    if usual:
        del inputs["x_bias"]
    with torch.no_grad():
        results = [
            *layer_norm(**inputs, gemma=True, pad_to=8, return_residual=True),
            rms_norm(inputs["x"], inputs["weight"], gate=inputs["gate"], round_before_weight=True),
        ]
        if not usual:
            results += torch.ops.hipkittens.norm(
                *(inputs["x"], None, inputs["weight"], None, None, None, torch.tensor([5, 7])),
                *(True, 1e-5, 0.5, False, False, False, columns),
            )
        smooth = draw(columns, dtype=torch.float32).detach()
        for spec in _SPECS:
            scale = torch.tensor(0.01) if spec.granularity == "tensor" else None
            found = norm_quantize(
                **inputs,
                eps=1e-5,
                spec=spec,
                scale=scale,
                norm="layer",
                smooth=smooth,
                second=inputs["gate"][:, : columns // 24 * 8],
                return_norm=True,
                return_residual=True,
            )
            results += [value.view(torch.uint8) if value.dtype.itemsize == 1 else value for value in found]
    return results


def _columns(row) -> int:
    """The columns for a row of variants.def: lanes at the end without elements, or a tail."""
    if row["usual"] == "true":
        return 512 * int(row["waves"]) * int(row["chunks"]) - 8
    return _COLUMNS["short" if int(row["waves"]) == 1 else "long"]


def fused_trial(kernel: Kernel) -> Trial:
    name, columns, usual = kernel.row["element"], _columns(kernel.row), kernel.row["usual"] == "true"
    return Trial(
        f"norm and norm_quantize 9x{columns} {name}",
        partial(_run, DTYPES[name], 9, columns, usual),
        shared_by="first.workers",
    )


def representative() -> Iterator[Trial]:
    for name, dtype in DTYPES.items():
        for columns in (512, 2048, 4096, 8192):

            def run(dtype=dtype, columns=columns):
                x, weight = (draw(*shape, dtype=dtype).detach() for shape in ((64, columns), (columns,)))
                return [rms_norm(x, weight, gemma=True)]

            yield Trial(f"rms_norm 64x{columns} {name}, 1 + weight", run)
    yield from _of_any_arguments(9)


def _of_any_arguments(rows: int) -> Iterator[Trial]:
    for name, dtype in DTYPES.items():
        for columns in _COLUMNS.values():
            run = partial(_run, dtype, rows, columns, False)
            yield Trial(f"norm and norm_quantize {rows}x{columns} {name}", run)


def every_kernel() -> Iterator[Trial]:
    for name, dtype in DTYPES.items():
        for columns in (504, 2040, 4088, 8184):
            run = partial(_run, dtype, 2, columns, True)
            yield Trial(f"norm and norm_quantize 2x{columns} {name}", run)
    yield from _of_any_arguments(2)
