# SPDX-License-Identifier: MIT
"""The record of quantize."""

from __future__ import annotations

import math
from functools import partial

import torch

from .._call import call
from ..activation import GATES
from ..quantization import QuantSpec, dequantize, gated_activation_quantize, quantize
from ..scaled_gemm import banded_shape, shuffled
from ._record import (
    DTYPES,
    Benchmark,
    Checks,
    Example,
    Function,
    Kernel,
    Operation,
    Operator,
    Table,
    Trial,
    no_derivative,
)
from ._sharding import replicated
from ._tables import MEMORY_BOUND_SIZES
from ._tensors import draw, ends_of

_SHUFFLED = 2


def _fake(x, scale, smooth, ids, entries, ends, choices, *options):
    rows = x if entries is None else x.new_empty((entries.shape[0], x.shape[1]))
    return codes_and_scales(rows, x.shape[-1], scale, ends, *options)


def _fake_bands(scales, ends):
    return scales.new_empty(banded_shape(scales.shape[0], ends.shape[0], scales.shape[1]))


def codes_and_scales(
    x,
    columns,
    scale,
    ends,
    code,
    group,
    layout,
    floor,
    bound,
    zero_scale,
    power_exponent,
    power_threshold,
    other,
):
    """Of the shapes that operators return, for rows of so many columns, as many as x has."""
    width = columns // 2 if code == 3 else columns // 4 * 3 if code > 3 else columns
    codes = x.new_empty((*x.shape[:-1], width), dtype=torch.uint8)
    if scale is not None:
        return codes, x.new_empty((0,), dtype=torch.float32)
    if ends is not None:
        bands = banded_shape(x.shape[0], ends.shape[0], -(-columns // group))
        return codes, x.new_empty(bands, dtype=torch.uint8)
    rows = x.numel() // x.shape[-1]
    if group == -2:
        shape = (math.prod(x.shape[:-2]) * -(-x.shape[-2] // 128), -(-columns // 128))
    else:
        shape = (1, 1) if group == 0 else (rows, 1) if group == -1 else (rows, -(-columns // group))
    if layout == _SHUFFLED:
        shape = (-(-shape[0] // 256) * 256, -(-shape[1] // 8) * 8)
    if layout == 1:
        shape = shape[::-1]
    return codes, x.new_empty(shape, dtype=torch.uint8 if power_exponent >= 0 else torch.float32)


_no_backward = no_derivative("quantize", "a straight-through estimator")


def _sharding(x, *rest):
    return [replicated((x, *rest), 2)]


# Each trial runs every way in which a kernel makes codes and scales.
_SPECS = {
    "row": (
        QuantSpec("fp8"),
        QuantSpec("bf8"),
        QuantSpec("int8"),
        QuantSpec("int8", rounding="truncate", floor=2.0),
        QuantSpec("fp8", scale_rule="round_up"),
        QuantSpec("fp6"),
        QuantSpec("bf6"),
    ),
    "group": (
        QuantSpec("fp8", 128),
        QuantSpec("int8", 64, layout="columns"),
        QuantSpec("mxfp4"),
        QuantSpec("mxfp4", scale_rule="round_up", rounding="away", layout="shuffled"),
        QuantSpec("mxfp6", layout="shuffled"),
        QuantSpec("mxbf6"),
    ),
    "block": (QuantSpec("fp8", (128, 128)), QuantSpec("int8", (128, 128), rounding="truncate")),
    "tensor": (
        QuantSpec("fp8", "tensor"),
        QuantSpec("int8", "tensor", scale_bound=1.5),
        QuantSpec("fp8", "tensor", scale_rule="round_up"),
        QuantSpec("fp6", "tensor"),
    ),
}


# Columns that the largest rows of variants.def hold.
_MOST_HELD = 8192


def _trial(kernel: Kernel) -> Trial:
    if kernel.kind in ("banded_group", "bands"):
        return _trial_of_bands(kernel)
    dtype = DTYPES[kernel.row["element"]]
    rows, columns = 9, 518
    gated = kernel.row.get("gated") == "true"
    if kernel.kind == "row":  # beyond what its registers hold, where no larger row would be taken
        capacity = 512 * int(kernel.row["waves"]) * int(kernel.row["chunks"])
        columns = capacity + (582 if capacity == _MOST_HELD else -6)
    if kernel.kind == "block":
        rows = 131
    specs = _SPECS["tensor" if kernel.kind == "maximum" else kernel.kind]

    def run():
        def values(of: int) -> torch.Tensor:
            return draw(rows, 2 * of if gated else of, dtype=dtype).detach()

        x, whole = values(columns), values(-(-columns // 32) * 32)
        one = torch.tensor(0.01) if gated and kernel.kind == "tensor" else None
        function = partial(gated_activation_quantize, scale=one) if gated else quantize
        results = [value for spec in specs for value in function(whole if "6" in spec.format else x, spec)]
        if gated:
            results += [function(x, specs[0], kind)[0] for kind in GATES]
            results.append(function(x, specs[0], bias=draw(2 * columns, dtype=dtype).detach())[0])
        elif kernel.kind in ("row", "group"):
            smooth, ids = draw(3, columns, dtype=torch.float32).detach(), torch.arange(-1, rows - 1) % 4
            results += quantize(x, specs[0], smooth=smooth, smooth_ids=ids)
        if kernel.kind == "tensor" and not gated:
            results.append(quantize(x, specs[0], torch.tensor(0.01))[0])
        return [value.view(torch.uint8) if value.dtype.itemsize == 1 else value for value in results]

    title = "gated_activation_quantize" if gated else "quantize"
    return Trial(f"{title} {rows}x{columns} {kernel.kind} {kernel.row['element']}", run)


def _trial_of_bands(kernel: Kernel) -> Trial:
    """Groups that begin inside bands of x, on one, and empty ones; columns that pad."""
    sizes, columns = (5, 0, 64, 40), 544
    rows, spec = sum(sizes) + 3, QuantSpec("mxfp4", layout="shuffled")

    def run():
        offs = ends_of(sizes)
        if kernel.kind == "bands":
            results = (call("scales_in_bands", torch.arange(rows * 17).to(torch.uint8).view(rows, 17), offs),)
        else:
            gated = kernel.row["gated"] == "true"
            x = draw(rows, columns * (1 + gated), dtype=DTYPES[kernel.row["element"]]).detach()
            results = (gated_activation_quantize if gated else quantize)(x, spec, offs=offs)
        return [*results[:-1], torch.where(_in_groups(sizes, rows), results[-1], 0)]

    return Trial(f"quantize {rows}x{columns} {kernel.row['name']}", run)


def _in_groups(sizes: tuple[int, ...], rows: int) -> torch.Tensor:
    """Where bands have rows: the others are not written."""
    there = torch.zeros(banded_shape(rows, len(sizes), 17), dtype=torch.uint8)
    begins = [0, *ends_of(sizes).tolist()]
    for group, (begin, end) in enumerate(zip(begins, [*begins[1:], rows], strict=True)):
        place = 32 * (begin // 32 + group)
        there[place : place + end - begin] = 1
    return shuffled(there) == 1


def _there_and_back(x: torch.Tensor, spec: QuantSpec) -> torch.Tensor:
    return dequantize(*quantize(x, spec), spec, x.dtype)


def _whole_numbers(x: torch.Tensor) -> torch.Tensor:
    """int8 codes of rows whose largest magnitude is 127: themselves."""
    x = torch.cat((x, torch.full_like(x[:, :1], 127)), 1)
    return _there_and_back(x, QuantSpec("int8"))


def _call(problem, device, spec):
    x = problem.tensor(device, problem["rows"], problem["columns"])
    return lambda: quantize(x, spec)


def _bytes(extra: float):
    return lambda problem: (2.0 + extra) * problem["rows"] * problem["columns"]


def _checks() -> Checks:
    shapes = "16384x2048,16384x8192"
    return Checks(
        trial=_trial,
        examples=(
            Example(
                "quantize int8, rows",
                {"x": (64, 1000)},
                _whole_numbers,
                lambda x: torch.cat((x, torch.full_like(x[:, :1], 127)), 1),
                gradients=False,
                integers=True,
            ),
        ),
        calls=lambda tensor: [
            ("rows of fp8", "quantize", (tensor(4, 96), QuantSpec("fp8")), {}),
            ("groups of 128", "quantize", (tensor(4, 96), QuantSpec("fp8", 128, layout="columns")), {}),
            ("blocks of 128x128", "quantize", (tensor(4, 96), QuantSpec("fp8", (128, 128))), {}),
            (
                "factors of experts",
                "quantize",
                (tensor(4, 96), QuantSpec("int8")),
                {
                    "smooth": tensor(3, 96, dtype=torch.float32),
                    "smooth_ids": tensor(4, dtype=torch.int32),
                },
            ),
            ("MXFP4", "quantize", (tensor(4, 96), QuantSpec("mxfp4", layout="shuffled")), {}),
            ("MXFP6", "quantize", (tensor(4, 96), QuantSpec("mxfp6", layout="shuffled")), {}),
            ("6 bits, scales of rows", "quantize", (tensor(4, 96), QuantSpec("bf6")), {}),
        ],
        exercise=lambda draw: [quantize(draw(20, 64).detach(), QuantSpec("int8"))[1]],
        benchmarks=(
            Benchmark(
                "quantize_rows",
                example="16384x8192",
                extents=("rows", "columns"),
                shapes=shapes,
                heading="Quantisation to fp8, a scale for each row",
                bytes=_bytes(1),
                call=partial(_call, spec=QuantSpec("fp8")),
                tables=(Table("To fp8 of rows of 2048, batch 16", "{rows}x2048", MEMORY_BOUND_SIZES),),
            ),
            Benchmark(
                "quantize_groups",
                example="16384x8192",
                extents=("rows", "columns"),
                shapes=shapes,
                heading="Quantisation to fp8, groups of 128",
                bytes=_bytes(1 + 4 / 128),
                call=partial(_call, spec=QuantSpec("fp8", 128)),
            ),
            Benchmark(
                "quantize_blocks",
                example="16384x8192",
                extents=("rows", "columns"),
                shapes=shapes,
                heading="Quantisation to fp8, blocks of 128x128",
                bytes=_bytes(1 + 4 / 128**2),
                call=partial(_call, spec=QuantSpec("fp8", (128, 128))),
            ),
            Benchmark(
                "quantize_mxfp4",
                example="16384x8192",
                extents=("rows", "columns"),
                shapes=shapes,
                heading="Quantisation to MXFP4",
                bytes=_bytes(0.5 + 1 / 32),
                call=partial(_call, spec=QuantSpec("mxfp4")),
            ),
        ),
    )


OPERATION = Operation(
    name="quantize",
    folder="quantize",
    functions=(Function(quantize, lambda tensor, dtype: (tensor(32, 128, dtype=dtype), QuantSpec("fp8"))),),
    operators=(
        Operator("quantize", _fake, _no_backward, sharding=_sharding, first_option=6),
        Operator(
            "scales_in_bands",
            _fake_bands,
            no_derivative("scales_in_bands", "scales of what has one"),
            sharding=lambda *arguments: [replicated(arguments, 1)],
            first_option=2,
        ),
    ),
    checks=_checks,
)
