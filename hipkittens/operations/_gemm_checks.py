# SPDX-License-Identifier: MIT
"""Checks of matrix products: problems for each kernel, examples, benchmarks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .._backend import partitioned
from .._environment import GEMM_LOADS
from ..gemm import addmm_, linear, matmul
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Rows, Table, Trial
from ._tables import DEVICES
from ._tensors import draw

_NAMES = ("bf16", "f16")
_ORIENTATIONS = ("nn", "nt", "tn", "tt")
# m, n, k: for each tile one at which the plan for a single XCD selects it, on the targets that have it: an eighth of what a whole device
# needs to be full. The last two split K and have odd rows.
_SHAPES = (
    (512, 4096, 640),
    (512, 2048, 512),
    (256, 2048, 512),
    (512, 512, 768),
    (128, 2048, 256),
    (64, 512, 768),
    (64, 128, 2048),
    (257, 129, 515),
)
# gfx942 has 256x224 tiles only for nt, and uses them at the first of those above.
_SHAPES_NT = ((4864, 512, 256), (16, 2048, 1064), (16, 3072, 488))
# Tiles that have a row with plain loads, on gfx950.
_SHAPES_OF_TWINS = ((512, 4096, 640), (256, 2048, 512))
# The same with loops of several iterations and tails, by tile: it needs one for every compute unit. A tail is more than half a tile,
# so that every read of it finds nonzero values.
_LOOPED_SHAPES = {
    (256, 256, 64): (4864, 512, 488),
    (256, 224, 32): (512, 4096, 1048),
    (256, 128, 64): (512, 2048, 360),
    (128, 128, 64): (256, 2048, 360),
    (64, 128, 64): (512, 512, 808),
    (64, 64, 64): (128, 2048, 296),
    (32, 64, 64): (64, 512, 424),
    (16, 64, 64): (16, 2048, 1064),
    (16, 128, 64): (16, 3072, 488),
}
# For sums that are added to C, whose K is not split, by the tile's rows and the alignment of operand rows.
_ADDED_SHAPES = {
    ("256", "vector"): (4864, 512, 616),
    ("128", "vector"): (256, 2048, 488),
    ("64", "vector"): (1024, 256, 616),
    ("64", "element"): (257, 129, 419),
}
_ADDED_ORIENTATIONS = ("nn", "tn")
_LOOPED_UNALIGNED = (257, 129, 515)
# batch, m, n, k and whether rows are unaligned: one for each tile size, and a long k that is split
_SMALL_SHAPES = (
    (256, 256, 256, 64, False), (256, 128, 128, 64, False), (1, 64, 64, 64, False), (256, 32, 128, 64, False),
    (512, 16, 256, 64, False), (1, 60, 60, 61, True), (1, 64, 64, 8192, False),
)  # fmt: skip


@partitioned("CPX")
def _run(orientation: str, dtype: torch.dtype, m: int, n: int, k: int) -> list[torch.Tensor]:
    with torch.no_grad():
        a = draw(k, m, dtype=dtype).t() if orientation[0] == "t" else draw(m, k, dtype=dtype)
        b = draw(n, k, dtype=dtype).t() if orientation[1] == "t" else draw(k, n, dtype=dtype)
        return [matmul(a, b)]


@partitioned("CPX")
def _run_adding(orientation: str, dtype: torch.dtype, m: int, n: int, k: int) -> list[torch.Tensor]:
    with torch.no_grad():
        a = draw(k, m, dtype=dtype).t() if orientation[0] == "t" else draw(m, k, dtype=dtype)
        return [addmm_(draw(m, n, dtype=torch.float32), a, draw(k, n, dtype=dtype))]


@contextlib.contextmanager
def _loads(order: str) -> Iterator[None]:
    """Context manager: rows with this order of loads are used instead of the same ones with another."""
    before = os.environ.get(GEMM_LOADS.variable)
    os.environ[GEMM_LOADS.variable] = order
    try:
        yield
    finally:
        if before is None:
            del os.environ[GEMM_LOADS.variable]
        else:
            os.environ[GEMM_LOADS.variable] = before


def _run_with_loads(order: str, *problem: Any) -> list[torch.Tensor]:
    with _loads(order):
        return _run(*problem)


def _trial(
    name: str, orientation: str, shape: tuple[int, int, int], loads: str = "alternate", **options
) -> Trial:
    title = f"matmul {orientation} {'x'.join(map(str, shape))} {name}" + f" {loads} loads" * (
        loads == "plain"
    )
    return Trial(title, partial(_run_with_loads, loads, orientation, DTYPES[name], *shape), **options)


def _adding_trial(name: str, orientation: str, shape: tuple[int, int, int], **options) -> Trial:
    title = f"addmm_ {orientation} {'x'.join(map(str, shape))} {name}"
    return Trial(title, partial(_run_adding, orientation, DTYPES[name], *shape), **options)


def _trial_of(kernel: Kernel) -> Trial:
    if kernel.kind == "reduce":
        return _trial("bf16", "nt", (64, 128, 2048))
    row = kernel.row
    if kernel.kind == "adding":
        shape = _ADDED_SHAPES[row["tile_m"], row["row_start"]]
        return _adding_trial(row["a"], row["orientation"], shape, workgroups=3, skip=True)
    shape = _LOOPED_SHAPES[tuple(int(row[size]) for size in ("tile_m", "tile_n", "tile_k"))]
    if row["row_start"] != "vector":
        shape = _LOOPED_UNALIGNED
    loads = "plain" if row["name"].endswith("_plain") else "alternate"
    return _trial(row["a"], row["orientation"], shape, loads, workgroups=3, skip=True)


def _representative() -> Iterator[Trial]:
    for name in _NAMES:
        for orientation in _ORIENTATIONS:
            for shape in (*_SHAPES, *(_SHAPES_NT if orientation == "nt" else ())):
                yield _trial(name, orientation, shape)
    for shape in _SHAPES_OF_TWINS:
        yield _trial("bf16", "nt", shape, "plain")
    for name in _NAMES:
        for orientation in _ADDED_ORIENTATIONS:
            for shape in _ADDED_SHAPES.values():
                yield _adding_trial(name, orientation, shape)


def _run_batch(batch: int, m: int, n: int, k: int, anywhere: bool, orientation: str, dtype: torch.dtype):
    rows_a, rows_b = (
        ((k, m) if orientation[0] == "t" else (m, k)),
        ((n, k) if orientation[1] == "t" else (k, n)),
    )
    a, b = (
        draw(batch, rows, columns + anywhere, dtype=dtype).detach()[..., :columns]
        for rows, columns in (rows_a, rows_b)
    )
    return [matmul(a.mT if orientation[0] == "t" else a, b.mT if orientation[1] == "t" else b)]


def _every_kernel() -> Iterator[Trial]:
    for name in _NAMES:
        for orientation in _ORIENTATIONS:
            for shape in _SMALL_SHAPES:
                title = f"matmul {shape} {orientation} {name}"
                yield Trial(title, partial(_run_batch, *shape, orientation, DTYPES[name]))
    yield from _representative()


def _times_transposed(x, weight, bias):
    return matmul(x, weight.t(), bias=bias)


def _magnitude(x, weight, bias) -> float:
    return (x.abs() @ weight.abs().t()).max().item()


def _example(title, m, n, k, dtype=torch.bfloat16, ours=_times_transposed, gradients=False, **options):
    inputs = {"x": (m, k), "weight": (n, k), "bias": (n,)}
    return Example(
        title, inputs, ours, F.linear, dtype, gradients, magnitude=_magnitude, shape=(m, n, k), **options
    )


_EXAMPLES = (
    _example("square", 1024, 1024, 1024),
    _example("large", 4096, 4096, 512),
    _example("one row", 1, 4096, 4096),
    _example("odd sizes", 257, 1001, 515, torch.float16),
    _example("integers", 300, 200, 130, integers=True),
    _example("linear, trained", 384, 768, 512, ours=linear, gradients=True),
)


def _calls(tensor):
    x, w = tensor(4, 96), tensor(96)
    return [
        (
            "transposed operands, bias, float32 result",
            "matmul",
            (x.mT, x),
            {"bias": w, "out_dtype": torch.float32},
        ),
        ("broadcast batch dimensions", "matmul", (tensor(3, 1, 4, 8), tensor(2, 8, 5)), {}),
        ("mixed input dtypes", "matmul", (x, x.mT.half()), {}),
        ("float32 operands", "matmul", (x.float(), x.mT.float()), {}),
        ("accumulated in place into float32", "addmm_", (tensor(96, 96, dtype=torch.float32), x.mT, x), {}),
    ]


def _sizes(rows: Rows) -> str:
    targets: dict[tuple[int, ...], set[str]] = {}
    for target, of_target in rows.items():
        for row in of_target:
            if row["kind"] == "gemm":
                tile = tuple(int(row[key]) for key in ("tile_m", "tile_n", "tile_k"))
                targets.setdefault(tile, set()).add(target)
    named = ", ".join(
        "x".join(map(str, tile)) + ("" if len(of) == len(rows) else f" ({', '.join(sorted(of))})")
        for tile, of in sorted(targets.items(), reverse=True)
    )
    return f"GEMM: any M, N and K. Tiles (M x N x K): {named}."


def _exercise(draw):
    with torch.no_grad():
        sums = addmm_(draw(20, 48, seed=7).float(), draw(20, 64), draw(64, 48, seed=8))
    return [linear(draw(20, 64), draw(48, 64, seed=5), draw(48, seed=6)), sums]


def _call(problem, device):
    e = problem.extents
    a, b = problem.tensor(device, e["M"], e["K"]), problem.tensor(device, e["N"], e["K"])
    return lambda: matmul(a, b.mT)


def _call_torch(problem):
    e = problem.extents
    a, b = problem.tensor("cuda", e["M"], e["K"]), problem.tensor("cuda", e["N"], e["K"])
    return lambda: a @ b.mT


CHECKS = Checks(
    trial=_trial_of,
    examples=_EXAMPLES,
    doctor=Example("gemm", {"x": (129, 256), "weight": (72, 256), "bias": (72,)}, linear, F.linear),
    parity=("parity_matmul:MATMUL", "parity_matmul:LINEAR", "parity_matmul:ADDMM"),
    calls=_calls,
    sizes=_sizes,
    benchmarks=(
        Benchmark(
            "gemm",
            example="4096x4096x4096",
            shapes="1024x1024x1024,2048x2048x2048,4096x4096x4096",
            extents=("M", "N", "K"),
            flops=lambda e: 2.0 * e["M"] * e["N"] * e["K"],
            bytes=lambda e: 2.0 * (e["M"] * e["K"] + e["K"] * e["N"] + e["M"] * e["N"]),
            call=_call,
            torch=_call_torch,
            heading="GEMM",
            fit="gemm_plan",
            tables=(
                Table(
                    "GEMM, M = N = K",
                    "{N}x{N}x{N}",
                    dict.fromkeys(DEVICES, (1024, 2048, 4096, 8192)),
                    {"triton": dict.fromkeys(DEVICES, 2048), "aiter": dict.fromkeys(DEVICES, 2048)},
                ),
            ),
        ),
    ),
    representative=_representative,
    every_kernel=_every_kernel,
    exercise=_exercise,
)
