# SPDX-License-Identifier: MIT
"""One GEMM variant at one shape in the cycle model, with every choice of the plan forced."""

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
from tests.kernels.gemm_plan import ROWS, SCALED_ROWS, Problem, kernel, make_plan, shape

# The last two words of GemmArguments::order (csrc/kernels/gemm/arguments.h): xcd_chunk, window_rows; padding follows.
_ORDER, _ORDER_AT = struct.Struct("<2I"), 132


@dataclass(frozen=True)
class Tile:
    """The tile of a variant, and which of its rows have to begin on 4 bytes.

    name   of the variant, but for its orientation and, of bf16, its element
    """

    name: str
    m: int
    n: int
    k: int
    element: str = "bf16"
    scales: str = "none"


def tiles(target: str, elements: Sequence[str] = ("bf16", "fp8", "fp4")) -> list[Tile]:
    """Of the variants of `target`, those that differ in more than orientation, element type and order of loads."""
    names = {
        name.removeprefix("nt_bf16_"): Tile(name.removeprefix("nt_bf16_"), *extents)
        for name, (targets, _, _, *extents) in ROWS.items()
        if name.startswith("nt_bf16_") and not name.endswith("_plain") and targets in ("both", target)
    }
    names |= {
        name.removeprefix("nt_"): Tile(name.removeprefix("nt_"), *extents, a, scales)
        for name, (targets, a, b, scales, *extents) in SCALED_ROWS.items()
        if (a, b) in (("fp8", "fp8"), ("fp4", "fp4"))
        and targets in ("both", target)
        # Which cost what those of `blocks` do (plan.cpp).
        and scales != "row_blocks"
    }
    return [tile for tile in names.values() if tile.element in elements]


def _scaled_row(tile: str) -> tuple[Any, ...] | None:
    """Of the variant with this name of a Tile, or, of a name that ends with _, of one that begins so."""
    if tile.endswith("_"):
        return next(row for name, row in SCALED_ROWS.items() if name.startswith(f"nt_{tile}"))
    return SCALED_ROWS.get(f"nt_{tile}")


def element_of(tile: str) -> str:
    """Of the variant with this name of a Tile."""
    found = _scaled_row(tile)
    return found[1] if found else "bf16"


def described(target: str, tile: str, m: int, n: int, k: int, orientation: str = "nt") -> tuple[Problem, str]:
    """The product with a result of bf16 that the variant with that tile computes, and its name."""
    found = _scaled_row(tile)
    if found is None:
        return shape(target, m, n, k, orientation=orientation), tile and f"{orientation}_bf16_{tile}"
    _, a, b, scales, *_ = found
    problem = shape(target, m, n, k, element=a, element_b=b, scales=scales, output="bf16")
    return problem, "" if tile.endswith("_") else f"nt_{tile}"


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
    """Launches a product by the variant with that tile in the model that is open; "" is the plan's own choice for bf16 and "fp8_"
    for fp8, with its splits. The result is bf16.

    order  (tiles that an XCD takes in a row, rows of tiles in a window) in place of the plan's
    """
    problem, variant = described(target, tile, m, n, k, orientation)
    quantised = element_of(tile) != "bf16"
    size = 1 if quantised else 2
    regions = {"a": _pages("a", size * m * k), "b": _pages("b", size * n * k), "c": _pages("c", 2 * m * n)}
    for name, region in regions.items():
        getattr(problem, name).data = region.ctypes.data
    if quantised:
        for name, rows in (("a_scale", m), ("b_scale", n)):
            regions[name] = _pages(name, 4 * rows)
            scale = getattr(problem, name)
            scale.data, scale.stride = regions[name].ctypes.data, 1
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
    """The launches of `launch` in the cycle model of `device`. `settings`: of hipkittens.timing."""
    with timing(device, **{"values": False, **settings}) as run:
        launch(DEVICES[device], tile, m, n, k, splits=splits, orientation=orientation, order=order)
    return run.launches


def cycles(launches: Sequence[ModelledLaunch]) -> float:
    """Of all launches together."""
    return sum(launch.cycles for launch in launches)


def microseconds(launches: Sequence[ModelledLaunch]) -> float:
    """Of all launches together, at the clock the model gives each."""
    return sum(launch.microseconds for launch in launches)
