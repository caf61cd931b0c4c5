# SPDX-License-Identifier: MIT
"""Runs one GEMM variant at one shape in the cycle model, with every choice of the plan forced."""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hipkittens._timing import DEVICES, ModelledLaunch, timing
from tests.kernels.gemm_plan import (
    BUFFERS,
    ROWS,
    SCALED_ROWS,
    Problem,
    Scale,
    kernel,
    make_plan,
    shape,
    stored,
)

# The last two words of GemmArguments::order (csrc/kernels/gemm/arguments.h): xcd_chunk, window_rows; padding follows.
_ORDER, _ORDER_AT = struct.Struct("<2I"), 132
# Bytes of each unit that `stored` counts for a format; one byte for other formats.
_STORED_BYTES = {"bf16": 2, "fp6": 4, "bf6": 4}


@dataclass(frozen=True)
class Tile:
    """The tile of a variant, and which of its rows must start at multiples of 4 bytes.

    name   of the variant, without its orientation and, for bf16, without its element
    a, b   the elements of the operands
    buffers  K tiles in LDS
    """

    name: str
    m: int
    n: int
    k: int
    a: str = "bf16"
    b: str = "bf16"
    scales: str = "none"
    buffers: int = 4

    @property
    def has_16_bits(self) -> bool:
        """Whether an element of either operand has 16 bits."""
        return "bf16" in (self.a, self.b)


def tiles(target: str, formats: Sequence[tuple[str, str]] | None = None) -> list[Tile]:
    """The tiles of the variants of `target`, one for those that differ only in orientation, elements of one size and order of loads.

    formats   of a and b, if only some are wanted
    """
    names = {
        name.removeprefix("nt_bf16_"): Tile(name.removeprefix("nt_bf16_"), *extents, buffers=BUFFERS[name])
        for name, (targets, _, _, *extents) in ROWS.items()
        if name.startswith("nt_bf16_") and not name.endswith("_plain") and targets in ("both", target)
    }
    names |= {
        name.removeprefix("nt_"): Tile(name.removeprefix("nt_"), *extents, a, b, scales, BUFFERS[name])
        for name, (targets, a, b, scales, *extents) in SCALED_ROWS.items()
        # Rows of other formats and scales cost the same as these (costed_as of plan.cpp).
        if targets in ("both", target) and not {"bf8", "i8", "bf6"} & {a, b} and scales != "row_blocks"
    }
    return [tile for tile in names.values() if formats is None or (tile.a, tile.b) in formats]


def _scaled_row(tile: str) -> tuple[Any, ...] | None:
    """The row of the variant with this Tile name, or of the first whose name starts with it if it ends with _."""
    if tile.endswith("_"):
        return next(row for name, row in SCALED_ROWS.items() if name.startswith(f"nt_{tile}"))
    return SCALED_ROWS.get(f"nt_{tile}")


def formats_of(tile: str) -> tuple[str, str, str]:
    """The elements of a and of b, and the scales, of the variant with this Tile name."""
    _, a, b, scales, *_ = _scaled_row(tile) or ("", "bf16", "bf16", "none")
    return a, b, scales


def described(target: str, tile: str, m: int, n: int, k: int, orientation: str = "nt") -> tuple[Problem, str]:
    """The product, with a bf16 result, that the variant with that tile computes, and the variant's name."""
    a, b, scales = formats_of(tile)
    if scales == "none":
        return shape(target, m, n, k, orientation=orientation), tile and f"{orientation}_bf16_{tile}"
    problem = shape(target, m, n, k, element=a, element_b=b, scales=scales, output="bf16")
    return problem, "" if tile.endswith("_") else f"nt_{tile}"


def bytes_of_rows(element: str, rows: int, k: int) -> int:
    """Bytes of an operand whose rows run along K."""
    return rows * stored(element, k) * _STORED_BYTES.get(element, 1)


def scale_strides(scales: str, side: str, k: int) -> tuple[int, int, int] | None:
    """The stride, k_stride and block_rows in ScaleArgument for operand `side`, "a" or "b", with dense scales; None if that operand
    has none. Strides are in elements: float32 or, for scales of each 32 of K, bytes.
    """
    if scales == "in_matrix" or (scales, side) == ("of_b", "b"):
        return -(-k // 256) * 256, 0, 32
    if scales == "of_b":
        return None
    if scales in ("blocks", "row_blocks"):
        return -(-k // 128), 1, 128 if (scales, side) == ("blocks", "b") else 1
    return None if scales == "none" else (1, 0, 1)


def bytes_of_scales(strides: tuple[int, int, int], rows: int) -> int:
    """Bytes of the scales for this many rows of A, or columns of B."""
    stride, _, block_rows = strides
    return -(-rows // block_rows) * stride * (1 if block_rows == 32 else 4)


def set_scale(scale: Scale, strides: tuple[int, int, int] | None, data: int | None) -> None:
    """Sets the scale's strides and its pointer to `data`; None clears the pointer."""
    scale.data = data
    if strides:
        scale.stride, scale.k_stride, scale.block_rows = strides


@functools.cache
def _pages(name: str, bytes: int) -> np.ndarray:
    """Untouched zero pages: contents do not matter, and cost no memory."""
    return np.zeros(bytes, np.uint8)


def launch(
    target: str,
    tile: str,
    m: int,
    n: int,
    k: int,
    *,
    splits: int = 1,
    orientation: str = "nt",
    order: tuple[int, int] | None = None,
) -> None:
    """Launches a product by the variant with that tile in the open model. "" is the plan's own choice for bf16; a prefix that ends with _
    is the plan's choice, and its splits, for the formats of the first row that starts with it. The result is bf16.

    order  (tiles that an XCD takes in a row, rows of tiles in a window) in place of the plan's
    """
    problem, variant = described(target, tile, m, n, k, orientation)
    a, b, scales = formats_of(tile)
    regions = {
        "a": _pages("a", bytes_of_rows(a, m, k)),
        "b": _pages("b", bytes_of_rows(b, n, k)),
        "c": _pages("c", 2 * m * n),
    }
    for name, region in regions.items():
        getattr(problem, name).data = region.ctypes.data
    for side, rows in (("a", m), ("b", n)):
        name, strides = f"{side}_scale", scale_strides(scales, side, k)
        if strides:
            regions[name] = _pages(name, bytes_of_scales(strides, rows))
        set_scale(getattr(problem, name), strides, regions[name].ctypes.data if strides else None)
    plan = make_plan(problem, variant, splits)
    if plan["workspace_bytes"]:
        regions["workspace"] = _pages("workspace", plan["workspace_bytes"])
        plan = make_plan(problem, variant, splits, regions["workspace"].ctypes.data)
    for step in plan["launches"]:
        arguments = bytearray.fromhex(step["arguments"])
        if order and not step["variant"].startswith("reduce"):
            assert len(arguments) >= 144
            _ORDER.pack_into(arguments, _ORDER_AT, *order)
        kernel(target, step["kernel"]).launch(
            bytes(arguments),
            regions,
            grid=step["grid"],
            block=step["block"],
            read_only=("a", "b", "a_scale", "b_scale"),
        )


def modelled(
    device: str,
    tile: str,
    m: int,
    n: int,
    k: int,
    *,
    splits: int = 1,
    orientation: str = "nt",
    order: tuple[int, int] | None = None,
    **settings: Any,
) -> list[ModelledLaunch]:
    """The launches of `launch` in the cycle model of `device`. `settings`: those of hipkittens.timing."""
    with timing(device, **{"values": False, **settings}) as run:
        launch(DEVICES[device], tile, m, n, k, splits=splits, orientation=orientation, order=order)
    return run.launches


def cycles(launches: Sequence[ModelledLaunch]) -> float:
    """Cycles of all launches together."""
    return sum(launch.cycles for launch in launches)


def microseconds(launches: Sequence[ModelledLaunch]) -> float:
    """Microseconds of all launches together, at the clock that the model gives each."""
    return sum(launch.microseconds for launch in launches)
