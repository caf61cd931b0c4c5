# SPDX-License-Identifier: MIT
"""Checks of scaled matrix products of quantized operands: a problem for each kernel, examples, calls."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .. import _backend
from ..quantization import dtype_of
from ..scaled_gemm import scaled_matmul
from ._record import Checks, Example, Kernel, Rows, Trial
from ._scaled_gemm_benchmarks import BENCHMARKS
from ._tensors import draw

# m, n, k: for each tile one at which the plan for a single XCD selects it, with loops of several iterations and a tail of more than half a
# K tile.
_LOOPED_SHAPES = {
    (256, 256, 128): (4864, 512, 1232),
    (128, 128, 128): (256, 2048, 1232),
    (64, 128, 128): (512, 512, 1616),
    (64, 64, 128): (128, 1024, 1232),
    (32, 64, 128): (64, 512, 1744),
    (16, 64, 128): (16, 2048, 1744),
    (16, 128, 128): (16, 3072, 1040),
    (32, 128, 128): (64, 2048, 1232),
    (256, 256, 256): (4864, 512, 2464),
    (128, 128, 256): (256, 2048, 2464),
    (64, 128, 256): (512, 512, 3232),
    (32, 128, 256): (64, 512, 2464),
}
# For scales that make each K tile more expensive, or other tile sizes cheaper in comparison.
_LOOPED_OF_SCALES = {
    "blocks": {(16, 64, 128): (16, 8192, 1744)},
    "in_matrix": {(16, 128, 128): (16, 2048, 2016), (16, 128, 256): (16, 4864, 2528)},
    "of_b": {(16, 128, 128): (16, 3072, 2016)},
}
# With two K tiles in LDS.
_LOOPED_OF_TWO_BUFFERS = {(64, 64, 128): (192, 2048, 848), (128, 64, 128): (128, 5120, 976)}
# If few compute units would be busy, gfx942 uses smaller ones.
_LOOPED_OF_GFX942 = {(64, 128, 128): (64, 4864, 1616)}
_LOOPED_UNALIGNED = (257, 129, 1030)
_SPLIT = (64, 64, 4096)


def codes(rows: int, columns: int, format: str) -> torch.Tensor:
    """Random quantized values ("codes") in a format of the simulated target."""
    values = draw(rows, columns // 2 if format == "fp4" else columns, dtype=torch.float32).detach()
    if format == "fp4":
        return (values * 60).to(torch.int8).view(torch.uint8)
    if format in ("fp6", "bf6"):
        return (values[:, : columns // 4 * 3] * 60).to(torch.int8).view(torch.uint8)
    if format == "bf16":
        return values.bfloat16()
    if format == "i8":
        return (values * 40).clamp(-128, 127).to(torch.int8)
    return values.to(dtype_of(format, values.device))


def factors(*shape: int) -> torch.Tensor:
    return draw(*shape, dtype=torch.float32).detach().abs() + 0.5


def e8m0(*shape: int) -> torch.Tensor:
    return (factors(*shape) * 4 + 125).to(torch.uint8)


# The recipe for each kind of scales that are applied between partial sums.
RECIPES = {
    "blocks": ("1x128", "128x128"),
    "row_blocks": ("1x128", "1x128"),
    "in_matrix": ("1x32", "1x32"),
    "of_b": ("row", "1x32"),
}


def scales_of(scales: str, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of an operand (m, k) and one (k, n), for kernels with this word in their row."""
    if scales == "outer":
        return factors(m, 1), factors(1, n)
    blocks = -(-k // 128)
    if scales in ("in_matrix", "of_b"):
        left, right = (e8m0(rows, k // 32) for rows in (m, n))
        return left if scales == "in_matrix" else factors(m, 1), right.t()
    return factors(m, blocks), factors(blocks, -(-n // 128) if scales == "blocks" else n)


@_backend.partitioned("CPX")
def _run(
    formats: tuple[str, str], m: int, n: int, k: int, scales: str = "outer", **options: Any
) -> list[torch.Tensor]:
    """Does nothing if the matrix instructions do not support such operands; K is rounded up to whole groups if there are any."""
    if scales in ("in_matrix", "of_b") or formats[0] in ("fp6", "bf6"):
        if formats[0] != "bf16" and _backend.arch_of(torch.device("cpu")) != "gfx950":
            return []
        k = -(-k // 32) * 32
    if formats[0] in ("fp6", "bf6"):
        options["formats"] = formats[0]
    a, w = codes(m, k, formats[0]), codes(n, k, formats[1])
    if options.get("out_dtype") == torch.int32:
        return [scaled_matmul(a, w.t(), None, None, **options)]
    return [scaled_matmul(a, w.t(), *scales_of(scales, m, n, k), recipe=RECIPES.get(scales), **options)]


def _run_split(format: str) -> list[torch.Tensor]:
    bias = draw(_SPLIT[1], dtype=torch.float32).detach()
    results = [
        *_run((format, format), *_SPLIT, bias=bias, activation="gelu"),
        *_run((format, format), *_SPLIT, out_dtype=torch.float32),
    ]
    return results + (_run((format, format), *_SPLIT, out_dtype=torch.int32) if format == "i8" else [])


@_backend.partitioned("CPX")
def _run_codes(m: int, n: int, k: int) -> list[torch.Tensor]:
    a, w = codes(m, k, "fp8"), codes(n, k, "fp8")
    options = {"bias": draw(n, dtype=torch.float32).detach(), "activation": "silu", "out_dtype": a.dtype}
    return [scaled_matmul(a, w.t(), *scales_of("outer", m, n, k), scale_result=factors() / 4, **options)]


def _trial(
    formats: tuple[str, str], shape: tuple[int, int, int], scales: str = "outer", **options: Any
) -> Trial:
    title = f"scaled_matmul {'x'.join(map(str, shape))} {' x '.join(formats)} {scales} scales"
    return Trial(title, partial(_run, formats, *shape, scales), **options)


def _split_trial(format: str) -> Trial:
    return Trial(f"scaled_matmul {'x'.join(map(str, _SPLIT))} {format}", partial(_run_split, format))


def looped_shape(kernel: Kernel) -> tuple[int, int, int]:
    """m, n, k at which the plan for a single XCD selects the tile of this kernel, with a loop of several iterations."""
    row = kernel.row
    shapes = _LOOPED_SHAPES | (_LOOPED_OF_GFX942 if kernel.target == "gfx942" else {})
    shapes |= _LOOPED_OF_SCALES.get(row.get("scales"), {})
    if row["name"].endswith("_two_buffers"):
        shapes = _LOOPED_OF_TWO_BUFFERS
    return shapes[tuple(int(row[size]) for size in ("tile_m", "tile_n", "tile_k"))]


def _trial_of(kernel: Kernel) -> Trial:
    row = kernel.row
    if kernel.kind == "scaled_reduce":
        return _split_trial("i8" if row["sum"] == "i32" else "fp8")
    shape = looped_shape(kernel)
    if kernel.kind == "codes":
        # The main loop has more iterations than that of the results, of which a lane has up to 16 vectors.
        shape = (*shape[:2], 2 * shape[2])
        return Trial(
            f"scaled_matmul {'x'.join(map(str, shape))} in codes",
            partial(_run_codes, *shape),
            workgroups=3,
            skip=True,
        )
    if row["row_start"] != "vector":
        shape = _LOOPED_UNALIGNED
    return _trial((row["a"], row["b"]), shape, row["scales"], workgroups=3, skip=True)


def _integers(x, weight):
    """Whole numbers are quantized exactly."""
    one = torch.ones((), device=x.device)
    return scaled_matmul(x.to(torch.int8), weight.to(torch.int8).t(), one, one, out_dtype=x.dtype)


_EXAMPLES = (
    Example(
        "scaled_matmul, int8",
        {"x": (130, 160), "weight": (72, 160)},
        _integers,
        torch.nn.functional.linear,
        gradients=False,
        integers=True,
        shape=(130, 72, 160),
    ),
)


def _calls(tensor):
    a, b = tensor(32, 64, dtype=torch.int8), tensor(48, 64, dtype=torch.int8).t()
    one = tensor(dtype=torch.float32)
    rows, columns = tensor(32, 1, dtype=torch.float32), tensor(1, 48, dtype=torch.float32)
    blocks = tensor(32, 2, dtype=torch.uint8)
    return [
        ("int8, rowwise scales", "scaled_matmul", (a, b, rows, columns), {}),
        (
            "int8, tensorwise scales, bias, activation",
            "scaled_matmul",
            (a, b, one, one),
            {"bias": tensor(48), "activation": "gelu"},
        ),
        (
            "int8, int32 accumulators returned",
            "scaled_matmul",
            (a, b, None, None),
            {"out_dtype": torch.int32},
        ),
        ("operands that are not quantized", "scaled_matmul", (tensor(32, 64), tensor(64, 48), one, one), {}),
        ("int8, block scales", "scaled_matmul", (a, b, blocks, blocks), {"recipe": "1x32"}),
        (
            "bfloat16 and MXFP4",
            "scaled_matmul",
            (
                tensor(32, 64, dtype=torch.bfloat16),
                tensor(48, 32, dtype=torch.uint8).t(),
                None,
                tensor(48, 2, dtype=torch.uint8).t(),
            ),
            {},
        ),
        (
            "MXFP6",
            "scaled_matmul",
            (
                tensor(32, 48, dtype=torch.uint8),
                tensor(48, 48, dtype=torch.uint8).t(),
                blocks,
                tensor(48, 2, dtype=torch.uint8).t(),
            ),
            {"formats": "fp6"},
        ),
    ]


def _sizes(rows: Rows) -> str:
    targets: dict[tuple[int, ...], set[str]] = {}
    for target, of_target in rows.items():
        for row in of_target:
            if row["kind"] == "scaled":
                tile = tuple(int(row[key]) for key in ("tile_m", "tile_n", "tile_k"))
                targets.setdefault(tile, set()).add(target)
    named = ", ".join(
        "x".join(map(str, tile)) + ("" if len(of) == len(rows) else f" ({', '.join(sorted(of))})")
        for tile, of in sorted(targets.items(), reverse=True)
    )
    return (
        "Scaled GEMM: any M, N and K; fp8, bf8 with fp8, int8, bfloat16 with MXFP4; on gfx950 also MXFP8, MXFP4, fp8 with MXFP4, and "
        "6-bit formats. The dtypes in the table are those of the result. "
        f"Tiles (M x N x K): {named}."
    )


CHECKS = Checks(
    trial=_trial_of,
    examples=_EXAMPLES,
    calls=_calls,
    sizes=_sizes,
    parity=tuple(f"parity_scaled_matmul:SCALED_MATMUL{which}" for which in ("", "_FEW_BITS", "_IN_CODES")),
    benchmarks=BENCHMARKS,
    exercise=lambda draw: [
        scaled_matmul(codes(20, 64, "i8"), codes(48, 64, "i8").t(), factors(20, 1), factors(1, 48))
    ],
)
