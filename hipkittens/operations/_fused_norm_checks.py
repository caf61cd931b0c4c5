# SPDX-License-Identifier: MIT
"""What runs the kernels of norms that have more around them: every operand, every way to make codes."""

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
# A row that a worker of the widest kernel reads in more than one turn; the kernels of narrower rows take none of these.
_LONG = 582
_WIDEST = 8192


def _inputs(dtype: torch.dtype, rows: int, columns: int) -> dict[str, torch.Tensor]:
    shapes = {"x": (rows, columns), "residual": (rows, columns), "gate": (rows, columns)}
    vectors = dict.fromkeys(("weight", "bias", "x_bias"), (columns,))
    return {name: draw(*shape, dtype=dtype).detach() for name, shape in (shapes | vectors).items()}


def _run(dtype: torch.dtype, rows: int, columns: int) -> list[torch.Tensor]:
    inputs = _inputs(dtype, rows, columns)
    with torch.no_grad():
        results = [
            *layer_norm(**inputs, gemma=True, pad_to=64, return_residual=True),
            rms_norm(inputs["x"], inputs["weight"], gate=inputs["gate"], round_before_weight=True),
            *torch.ops.hipkittens.norm(
                *(inputs["x"], None, inputs["weight"], None, None, None, torch.tensor([5, 7])),
                *(True, 1e-5, 0.5, False, False, False, columns),
            ),
        ]
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
                second=inputs["gate"][:, : columns // 3],
                return_norm=True,
                return_residual=True,
            )
            results += [value.view(torch.uint8) if value.dtype.itemsize == 1 else value for value in found]
    return results


def fused_trial(kernel: Kernel) -> Trial:
    """A row of the widest kernel is longer than its registers; the others' are not whole chunks of 8."""
    dtype, columns = DTYPES[kernel.row["element"]], 512 * int(kernel.row["waves"])
    columns += _LONG if columns == _WIDEST else -6
    return Trial(
        f"norm and norm_quantize 9x{columns} {kernel.row['element']}",
        partial(_run, dtype, 9, columns),
        shared_by="first.workers",
    )


def representative() -> Iterator[Trial]:
    """Of rows that registers hold, one after the other in memory."""
    for name, dtype in DTYPES.items():
        for columns in (512, 2048, _WIDEST):

            def run(dtype=dtype, columns=columns):
                x, weight = (draw(*shape, dtype=dtype).detach() for shape in ((64, columns), (columns,)))
                return [rms_norm(x, weight, gemma=True)]

            yield Trial(f"rms_norm 64x{columns} {name}, 1 + weight", run)


def every_kernel() -> Iterator[Trial]:
    for name, dtype in DTYPES.items():
        for columns in (506, 2042, _WIDEST + _LONG):
            yield Trial(f"norm and norm_quantize 9x{columns} {name}", partial(_run, dtype, 9, columns))
