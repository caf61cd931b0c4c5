# SPDX-License-Identifier: MIT
"""The record of quantize."""

from __future__ import annotations

import math
from functools import partial

import torch

from ..quantization import QuantSpec, dequantize, quantize
from ..scaled_gemm import banded_shape
from ._quantize_trials import trial
from ._record import (
    Benchmark,
    Checks,
    Example,
    Function,
    Operation,
    Operator,
    Table,
    no_derivative,
)
from ._sharding import replicated
from ._tables import MEMORY_BOUND_SIZES

_SHUFFLED = 2


def _fake(x, scale, smooth, ids, entries, places, ends, choices, codes_of_tokens, *options):
    rows = x if entries is None else x.new_empty((entries.shape[0], x.shape[1]))
    codes, scales = codes_and_scales(rows, x.shape[-1], scale, ends, *options)
    return codes.new_empty((x.shape[0], *codes.shape[1:])) if codes_of_tokens else codes, scales


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
    """Codes and scales in the shapes that operators return, for rows with this many columns, as many rows as x has."""
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


def _there_and_back(x: torch.Tensor, spec: QuantSpec) -> torch.Tensor:
    return dequantize(*quantize(x, spec), spec, x.dtype)


def _whole_numbers(x: torch.Tensor) -> torch.Tensor:
    """The int8 codes of rows whose largest magnitude is 127 are the rows themselves."""
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
        trial=trial,
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
            ("fp8, row scales", "quantize", (tensor(4, 96), QuantSpec("fp8")), {}),
            ("groups of 128", "quantize", (tensor(4, 96), QuantSpec("fp8", 128, layout="columns")), {}),
            ("blocks of 128x128", "quantize", (tensor(4, 96), QuantSpec("fp8", (128, 128))), {}),
            (
                "SmoothQuant factors per expert",
                "quantize",
                (tensor(4, 96), QuantSpec("int8")),
                {
                    "smooth": tensor(3, 96, dtype=torch.float32),
                    "smooth_ids": tensor(4, dtype=torch.int32),
                },
            ),
            ("MXFP4", "quantize", (tensor(4, 96), QuantSpec("mxfp4", layout="shuffled")), {}),
            ("MXFP6", "quantize", (tensor(4, 96), QuantSpec("mxfp6", layout="shuffled")), {}),
            ("6-bit, row scales", "quantize", (tensor(4, 96), QuantSpec("bf6")), {}),
            (
                "tokens routed to experts",
                "quantize",
                (tensor(4, 96), QuantSpec("fp8")),
                {
                    "entries": tensor(8, dtype=torch.int32),
                    "choices": 2,
                    "places": tensor(4, 2, dtype=torch.int32),
                },
            ),
        ],
        exercise=lambda draw: [quantize(draw(20, 64).detach(), QuantSpec("int8"))[1]],
        benchmarks=(
            Benchmark(
                "quantize_rows",
                example="16384x8192",
                extents=("rows", "columns"),
                shapes=shapes,
                heading="Quantization to fp8, a scale for each row",
                bytes=_bytes(1),
                call=partial(_call, spec=QuantSpec("fp8")),
                tables=(Table("To fp8, rows of 2048, batch 16", "{rows}x2048", MEMORY_BOUND_SIZES),),
            ),
            Benchmark(
                "quantize_groups",
                example="16384x8192",
                extents=("rows", "columns"),
                shapes=shapes,
                heading="Quantization to fp8, groups of 128",
                bytes=_bytes(1 + 4 / 128),
                call=partial(_call, spec=QuantSpec("fp8", 128)),
            ),
            Benchmark(
                "quantize_blocks",
                example="16384x8192",
                extents=("rows", "columns"),
                shapes=shapes,
                heading="Quantization to fp8, blocks of 128x128",
                bytes=_bytes(1 + 4 / 128**2),
                call=partial(_call, spec=QuantSpec("fp8", (128, 128))),
            ),
            Benchmark(
                "quantize_mxfp4",
                example="16384x8192",
                extents=("rows", "columns"),
                shapes=shapes,
                heading="Quantization to MXFP4",
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
        Operator("quantize", _fake, _no_backward, sharding=_sharding, first_option=7),
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
