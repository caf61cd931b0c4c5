# SPDX-License-Identifier: MIT
"""Checks of grouped matrix products of quantized operands: a problem for each kernel, calls, benchmarks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from .. import _backend
from ..grouped import grouped_matmul
from ..quantization import dtype_of
from ..scaled_gemm import banded_shape
from ._record import Benchmark, Kernel, Trial
from ._scaled_gemm_benchmarks import BITS
from ._scaled_gemm_checks import codes, e8m0, factors
from ._tensors import ends_of, even_ends, long_enough

# Sizes of groups, n and k at which the plan for a single XCD selects a tile, as in _grouped_checks.py: loops have several iterations,
# and K a tail of more than half a tile.
_SIZES: dict[tuple[int, ...], tuple[tuple[int, ...], int, int]] = {
    (256, 256): ((1500, 0, 1497), 512, 848),
    (128, 128): ((900, 700), 256, 2128),
    (64, 128): ((128, 0, 120, 130), 512, 848),  # gfx950's
    (64, 64): ((64, 0, 60, 64), 1536, 3280),  # with two K tiles in LDS on gfx950
    (32, 64): ((30, 22) * 7 + (52, 0), 128, 1104),
    (16, 64): ((5, 0, 20), 136, 4048),
    (16, 128): ((5, 0, 20), 1024, 2512),
}
# With two K tiles in LDS, for scales other than block scales.
_SIZES_OF_TWO_BUFFERS: dict[tuple[int, int], tuple[tuple[int, ...], int, int]] = {
    (128, 64): ((1500, 545), 256, 464),
}
# For block scales, which make each K tile more expensive.
_SIZES_OF_BLOCKS: dict[tuple[int, int], tuple[tuple[int, ...], int, int]] = _SIZES | {
    (16, 64): ((4,) * 16, 512, 2184),
}
# For 1x32 scales.
_SIZES_OF_MX: dict[int, tuple[tuple[int, ...], int, int]] = {
    256: ((220, 0, 2777), 512, 4064),
    128: ((800, 700), 256, 3936),
    64: ((64, 60), 1024, 8160),
    32: ((30, 0, 32), 1024, 4064),
    16: ((5, 0, 20), 1024, 4064),
}
# Rows of tiles that not every pair of formats has.
_HEIGHTS_OF_SOME: dict[int, tuple[tuple[str, str], ...]] = {
    64: (("bf16", "fp4"), ("fp4", "fp4"), ("fp8", "fp4")),
    16: (("fp4", "fp4"), ("fp8", "fp8"), ("bf16", "fp4")),
}
_FORMATS_OF_MX = {
    "in_matrix": (("fp4", "fp4"), ("fp8", "fp8"), ("fp8", "fp4")),
    "of_b": (("bf16", "fp4"), ("fp8", "fp4")),
}


@_backend.partitioned("CPX")
def _run(
    sizes: Sequence[int],
    n: int,
    k: int,
    scales: str,
    formats: tuple[str, str] = ("fp8", "fp8"),
    behind: int = 3,
    gathers: bool = False,
) -> list[torch.Tensor]:
    """Does nothing if the matrix instructions do not support such operands. gathers: first with rows that are gathered by entries."""
    mx = scales in _FORMATS_OF_MX
    if mx and formats[0] != "bf16" and _backend.arch_of(torch.device("cpu")) != "gfx950":
        return []
    rows, groups = sum(sizes) + behind, len(sizes)
    a, w = codes(rows, k, formats[0]), codes(groups * n, k, formats[1])
    blocks = -(-k // 128)
    if mx:
        scale_a = e8m0(rows, k // 32) if scales == "in_matrix" else factors(rows, 1)
        scale_b = e8m0(groups, n, k // 32).mT
    elif scales == "blocks":
        scale_a, scale_b = factors(rows, blocks), factors(groups, blocks, -(-n // 128))
    else:
        scale_a, scale_b = factors(rows, 1), factors(groups, 1, n)
    w = w.view(groups, n, w.shape[1])
    product = partial(grouped_matmul, a, w.mT, ends_of(sizes), scale_a=scale_a, scale_b=scale_b)
    if not gathers:
        return [product()]
    choices = 3
    entries = (torch.arange(rows) * 7 % (rows * choices)).int()
    return [product(entries=entries, choices=choices), product()]


def _trial(
    sizes: Sequence[int],
    n: int,
    k: int,
    scales: str,
    formats: tuple[str, str] = ("fp8", "fp8"),
    gathers: bool = False,
    **options: Any,
) -> Trial:
    title = f"grouped_matmul {tuple(sizes)} {' x '.join(dict.fromkeys(formats))} {scales} scales"
    return Trial(title, partial(_run, sizes, n, k, scales, formats, gathers=gathers), **options)


def _sizes_of(scales: str) -> dict[tuple[int, int], tuple[tuple[int, ...], int, int]]:
    return _SIZES_OF_BLOCKS if scales == "blocks" else _SIZES | _SIZES_OF_TWO_BUFFERS


def trial(kernel: Kernel) -> Trial:
    row = kernel.row
    tile = int(row["tile_m"]), int(row["tile_n"])
    shape = _SIZES_OF_MX[tile[0]] if row["scales"] in _FORMATS_OF_MX else _sizes_of(row["scales"])[tile]
    return _trial(*shape, row["scales"], (row["a"], row["b"]), gathers=True, workgroups=3, skip=True)


def representative() -> Iterable[Trial]:
    """With a K whose loop dominates the rest of a workgroup's tiles."""
    for scales, format in (("outer", "fp8"), ("blocks", "fp8"), ("outer", "i8")):
        for sizes, n, k in _sizes_of(scales).values():
            yield _trial(sizes, n, long_enough(k), scales, (format, format))
    for scales, pairs in _FORMATS_OF_MX.items():
        for formats in pairs:
            for tile_m, (sizes, n, k) in _SIZES_OF_MX.items():
                if formats in _HEIGHTS_OF_SOME.get(tile_m, (formats,)):
                    yield _trial(sizes, n, long_enough(k), scales, formats)


def as_codes(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """For small whole numbers, which are quantized exactly."""
    fp8 = dtype_of("fp8", a.device)
    rows, columns = a.new_ones(len(a), 1).float(), b.new_ones(len(b), 1, b.shape[2]).float()
    return grouped_matmul(a.to(fp8), b.to(fp8), offs, scale_a=rows, scale_b=columns, out_dtype=a.dtype)


def calls(tensor) -> list[tuple[str, str, tuple, dict]]:
    """Quantized values are in gfx942's formats, in tensors without data."""
    ends = tensor(3, dtype=torch.int32)
    a, b = tensor(32, 160, dtype=torch.float8_e4m3fnuz), tensor(3, 96, 160, dtype=torch.float8_e4m3fnuz).mT

    def scales(*shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
        return {
            name: tensor(*shape, dtype=torch.float32)
            for name, shape in zip(("scale_a", "scale_b"), shapes, strict=True)
        }

    return [
        ("fp8, rowwise scales", "grouped_matmul", (a, b, ends), scales((32, 1), (3, 1, 96))),
        ("fp8, one scale per block of 128", "grouped_matmul", (a, b, ends), scales((32, 2), (3, 2, 1))),
        (
            "fp8, groups along K",
            "grouped_matmul",
            (a, b[0], ends),
            scales((32, 1), (1, 96)),
        ),
        (
            "int8, rowwise scales",
            "grouped_matmul",
            (tensor(32, 160, dtype=torch.int8), tensor(3, 96, 160, dtype=torch.int8).mT, ends),
            scales((32, 1), (3, 1, 96)),
        ),
        ("fp8 without scales", "grouped_matmul", (a, b, ends), {}),
        (
            "bfloat16 and MXFP4",
            "grouped_matmul",
            (tensor(32, 160, dtype=torch.bfloat16), tensor(3, 96, 80, dtype=torch.uint8).mT, ends),
            {"scale_b": tensor(3, 96, 5, dtype=torch.uint8).mT},
        ),
        (
            "MXFP4",
            "grouped_matmul",
            (tensor(32, 80, dtype=torch.uint8), tensor(3, 96, 80, dtype=torch.uint8).mT, ends),
            {
                "scale_a": tensor(32, 5, dtype=torch.uint8),
                "scale_b": tensor(3, 96, 5, dtype=torch.uint8).mT,
            },
        ),
    ]


def _call(problem, device, by_blocks=False, formats: tuple[str, str] = ("fp8", "fp8")):
    e = problem.extents
    rows, groups, n, k = e["tokens"] * e["k"], e["G"], e["N"], e["K"]
    values = problem.tensor(device, rows, k), problem.tensor(device, groups, n, k)
    ends = even_ends(rows, groups, device)
    blocks = -(-k // 128)
    shapes = ((rows, blocks), (groups, blocks, -(-n // 128))) if by_blocks else ((rows, 1), (groups, 1, n))
    scale_a, scale_b = (torch.ones(shape, device=device) for shape in shapes)

    @functools.cache
    def operands(target: str) -> list[torch.Tensor]:
        # The target is known when the call is made: the model simulates one for each device.
        if formats[0] == "int8":
            return [(each * 40).clamp(-127, 127).to(torch.int8) for each in values]
        return [each.to(dtype_of("fp8", torch.device(device))) for each in values]

    def call():
        a, w = operands(_backend.arch_of(torch.device(device)))
        return grouped_matmul(a, w.mT, ends, scale_a=scale_a, scale_b=scale_b)

    return call


def _call_of_mx(problem, device, formats: tuple[str, str], scales: str = "in_matrix"):
    """With scales in the order of the kernels, those of rows in bands: scales of 1."""
    e = problem.extents
    rows, groups, n, k = e["tokens"] * e["k"], e["G"], e["N"], e["K"]

    def codes_of(format: str, count: int) -> torch.Tensor:
        values = problem.tensor(device, count, k // 2 if format == "fp4" else k)
        if format == "fp4":
            return values.to(torch.int8).view(torch.uint8)
        return values if format == "bf16" else values.to(torch.float8_e4m3fn)

    def ones(*shape: int) -> torch.Tensor:
        return torch.full(shape, 127, dtype=torch.uint8, device=device)

    a, w = codes_of(formats[0], rows), codes_of(formats[1], groups * n)
    w = w.view(groups, n, w.shape[1])
    scale_a = ones(*banded_shape(rows, groups, k // 32)) if scales == "in_matrix" else None
    scale_b = ones(groups, -(-n // 32) * 32, -(-k // 256) * 8)
    ends = even_ends(rows, groups, device)
    return lambda: grouped_matmul(a, w.mT, ends, scale_a=scale_a, scale_b=scale_b, swizzle="shuffled")


def _benchmark(name: str, heading: str, call: Any = _call, **options: Any) -> Benchmark:
    bits = [BITS[each] for each in options.get("formats", ("fp8", "fp8"))]
    return Benchmark(
        name,
        example="1024x8x2x28672x4096",
        extents=("tokens", "G", "k", "N", "K"),
        shapes="64x128x8x3072x4096,1024x8x2x28672x4096",
        heading=heading,
        flops=lambda e: 2.0 * e["tokens"] * e["k"] * e["N"] * e["K"],
        bytes=lambda e: (
            e["tokens"] * e["k"] * (bits[0] / 8 * e["K"] + 2 * e["N"])
            + bits[1] / 8 * min(e["G"], e["tokens"] * e["k"]) * e["K"] * e["N"]
        ),
        call=partial(call, **options),
        bits=max(bits),
    )


BENCHMARKS = (
    _benchmark("scaled_grouped_matmul", "fp8 grouped GEMM, rowwise scales"),
    _benchmark(
        "scaled_grouped_matmul_i8",
        "int8 grouped GEMM, rowwise scales",
        formats=("int8", "int8"),
    ),
    _benchmark(
        "scaled_grouped_matmul_blocks", "fp8 grouped GEMM, one scale per block of 128", by_blocks=True
    ),
    *(
        _benchmark(f"scaled_grouped_matmul_{name}", heading, _call_of_mx, formats=formats, scales=scales)
        for name, heading, formats, scales in (
            ("mxfp4", "MXFP4 grouped GEMM", ("fp4", "fp4"), "in_matrix"),
            ("mxfp8", "MXFP8 grouped GEMM", ("fp8", "fp8"), "in_matrix"),
            (
                "mxfp8_mxfp4",
                "Grouped GEMM of MXFP8 activations and MXFP4 weights",
                ("fp8", "fp4"),
                "in_matrix",
            ),
            ("bf16_mxfp4", "Grouped GEMM of bf16 activations and MXFP4 weights", ("bf16", "fp4"), "of_b"),
        )
    ),
)
