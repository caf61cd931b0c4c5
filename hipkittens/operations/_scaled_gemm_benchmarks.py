# SPDX-License-Identifier: MIT
"""Benchmarks of scaled matrix products of quantized operands: the problems of `hipkittens bench`."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import torch

from .. import _backend
from ..quantization import dtype_of
from ..scaled_gemm import scaled_matmul
from ._record import Benchmark, Table
from ._tables import DEVICES

# For docs/performance.md: shapes and devices with published figures.
_SQUARE = "M = N = K", "{N}x{N}x{N}"
_ON_BOTH = {"MI325X": (1024, 4096, 8192), "MI355X": (1024, 4096, 8192, 16384)}
_LARGE = {"MI355X": (4096, 8192)}


def _call(problem, device, format="fp8", scales="tensor", in_codes=False):
    """For 8 bits, e4m3 of the target or int8, with scales of 1 for each tensor, row and column ("row"), or blocks."""
    e = problem.extents
    values = [problem.tensor(device, rows, e["K"]) for rows in (e["M"], e["N"])]
    k_blocks = -(-e["K"] // 128)
    shapes = {
        "tensor": ((), ()),
        "row": ((e["M"], 1), (1, e["N"])),
        "blocks": ((e["M"], k_blocks), (k_blocks, -(-e["N"] // 128))),
    }
    scale_a, scale_b = (torch.ones(shape, device=device) for shape in shapes[scales])
    recipe = ("1x128", "128x128") if scales == "blocks" else scales

    @functools.cache
    def operands(target: str) -> list[torch.Tensor]:
        # The target is known when the call is made: the model simulates one for each device.
        dtype = torch.int8 if format == "int8" else dtype_of(format, torch.device(device))
        return [problem.in_codes(each, dtype) for each in values]

    def call():
        a, w = operands(_backend.arch_of(torch.device(device)))
        out_dtype = a.dtype if in_codes else torch.bfloat16
        return scaled_matmul(a, w.t(), scale_a, scale_b, recipe=recipe, out_dtype=out_dtype)

    return call


def _call_of_few_bits(problem, device, formats: tuple[str, str], scales: str = "in_matrix"):
    """With operands and scales in the order of the kernels, scales of 1."""
    e = problem.extents
    k = e["K"]

    def codes_of(format: str, rows: int) -> torch.Tensor:
        width = {"fp4": k // 2, "fp6": -(-k // 128) * 96}.get(format, k)
        values = problem.tensor(device, rows, width)
        if format in ("fp4", "fp6"):
            return values.to(torch.int8).view(torch.uint8)
        return values if format == "bf16" else values.to(torch.float8_e4m3fn)

    def ones(rows: int) -> torch.Tensor:
        padded = -(-rows // 32) * 32, -(-k // 256) * 8
        return torch.full(padded, 127, dtype=torch.uint8, device=device)

    a, w = codes_of(formats[0], e["M"]), codes_of(formats[1], e["N"])
    one = torch.ones((), device=device)
    scale_a = ones(e["M"]) if scales == "in_matrix" else None if formats[0] == "bf16" else one
    scale_b = one if scales == "outer" else ones(e["N"])
    recipe = {"in_matrix": "1x32", "of_b": ("tensor", "1x32"), "outer": "tensor"}[scales]
    named = {"formats": "fp6"} if "fp6" in formats else {}
    return lambda: scaled_matmul(a, w.t(), scale_a, scale_b, recipe=recipe, swizzle="shuffled", **named)


# Of an element.
BITS = {"fp4": 4, "fp6": 6, "fp8": 8, "int8": 8, "bf16": 16}


def _benchmark(
    name: str, heading: str, call: Any = _call, tables: tuple[Table, ...] = (), **options: Any
) -> Benchmark:
    bits = [BITS[each] for each in options.get("formats", ("fp8", "fp8"))]
    return Benchmark(
        name,
        example="8192x8192x8192",
        shapes="4096x4096x4096,8192x8192x8192",
        extents=("M", "N", "K"),
        flops=lambda e: 2.0 * e["M"] * e["N"] * e["K"],
        bytes=lambda e: (bits[0] * e["M"] * e["K"] + bits[1] * e["K"] * e["N"]) / 8 + 2.0 * e["M"] * e["N"],
        call=partial(call, **options),
        heading=heading,
        tables=tables,
        fit="gemm_plan",
        bits=4 if max(bits) == 6 else max(bits),  # for the rate: 6 bits have that of 4
    )


# Largest sizes of a peer's kernels: those of AITER's objects, and of the Triton kernels of its wheel, which take longer to model.
_AITER, _TRITON = {"aiter": 1 << 20}, {"triton": 4096}


def _peers(*libraries: dict[str, int]) -> dict[str, dict[str, int]]:
    return {name: dict.fromkeys(DEVICES, most) for each in libraries for name, most in each.items()}


BENCHMARKS = (
    _benchmark("scaled_matmul", "fp8 GEMM, tensorwise scales", tables=(Table(*_SQUARE, _ON_BOTH),)),
    _benchmark(
        "scaled_matmul_rows",
        "fp8 GEMM, rowwise scales",
        tables=(Table(*_SQUARE, _ON_BOTH, _peers(_TRITON)),),
        scales="row",
    ),
    _benchmark(
        "scaled_matmul_blocks",
        "fp8 GEMM, 1 x 128 and 128 x 128 block scales",
        tables=(
            Table(
                "N rows by 7168 columns, K 2304",
                "{N}x7168x2304",
                {"MI300X": (64, 1024, 16384)},
                _peers(_AITER, _TRITON),
            ),
            Table(
                "N rows by 7168 columns, K 16384",
                "{N}x7168x16384",
                {"MI355X": (64, 1024, 16384)},
                _peers(_AITER, _TRITON),
            ),
        ),
        scales="blocks",
    ),
    _benchmark("scaled_matmul_codes", "fp8 GEMM with fp8 result, tensorwise scales", in_codes=True),
    _benchmark(
        "scaled_matmul_int8",
        "int8 GEMM, rowwise scales",
        tables=(
            Table(*_SQUARE, _LARGE),
            Table(
                "N rows by 8192 columns, K 8320",
                "{N}x8192x8320",
                {"MI325X": (64, 1024, 9728)},
                _peers(_AITER, _TRITON),
            ),
        ),
        format="int8",
        scales="row",
    ),
    *(
        _benchmark(
            f"scaled_matmul_{name}", heading, _call_of_few_bits, tables=tables, formats=formats, scales=scales
        )
        for name, heading, formats, scales, tables in (
            ("mxfp8", "MXFP8 GEMM", ("fp8", "fp8"), "in_matrix", (Table(*_SQUARE, _LARGE),)),
            (
                "mxfp4",
                "MXFP4 GEMM",
                ("fp4", "fp4"),
                "in_matrix",
                (
                    Table(*_SQUARE, _LARGE, _peers(_AITER, _TRITON)),
                    Table(
                        "N rows by 8192 columns, K 28672",
                        "{N}x8192x28672",
                        {"MI355X": (1, 64, 1024, 16384)},
                        _peers(_AITER, _TRITON),
                    ),
                    Table(
                        "N rows by 4096 columns, K 14336",
                        "{N}x4096x14336",
                        {"MI355X": (32768,)},
                        _peers(_AITER),
                    ),
                ),
            ),
            ("mxfp6", "MXFP6 GEMM", ("fp6", "fp6"), "in_matrix", (Table(*_SQUARE, _LARGE),)),
            (
                "fp6",
                "fp6 GEMM, tensorwise scales",
                ("fp6", "fp6"),
                "outer",
                (Table(*_SQUARE, _LARGE),),
            ),
            ("mxfp8_mxfp4", "MXFP8 activations and MXFP4 weights", ("fp8", "fp4"), "in_matrix", ()),
            ("fp8_mxfp4", "fp8 activations and MXFP4 weights", ("fp8", "fp4"), "of_b", ()),
            ("bf16_mxfp4", "bf16 activations and MXFP4 weights", ("bf16", "fp4"), "of_b", ()),
        )
    ),
)
