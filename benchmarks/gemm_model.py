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
from tests.kernels.gemm_plan import ROWS, kernel, make_plan, shape

# The last two words of GemmArguments::order (csrc/kernels/gemm/arguments.h): xcd_chunk, window_rows; padding follows.
_ORDER, _ORDER_AT = struct.Struct("<2I"), 132


@dataclass(frozen=True)
class Tile:
    """The tile of a variant, and which of its rows have to begin on 4 bytes."""

    name: str
    m: int
    n: int
    k: int


def tiles(target: str) -> list[Tile]:
    """Of the variants of `target`, those that differ in more than orientation, element type and order of loads."""
    names = {
        name.removeprefix("nt_bf16_"): Tile(name.removeprefix("nt_bf16_"), *extents)
        for name, (targets, _, _, *extents) in ROWS.items()
        if name.startswith("nt_bf16_") and not name.endswith("_plain") and targets in ("both", target)
    }
    return list(names.values())


@functools.cache
def _pages(name: str, count: int) -> np.ndarray:
    """Untouched zero pages: contents do not matter, and cost no memory."""
    return np.zeros(count, np.uint16)


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
    """Launches a product of bf16 by the variant with that tile in the model that is open; "" is the plan's own choice, with its
    splits.

    order  (tiles that an XCD takes in a row, rows of tiles in a window) in place of the plan's
    """
    problem = shape(target, m, n, k, orientation=orientation)
    regions = {"a": _pages("a", m * k), "b": _pages("b", n * k), "c": _pages("c", m * n)}
    for name, region in regions.items():
        getattr(problem, name).data = region.ctypes.data
    variant = tile and f"{orientation}_bf16_{tile}"
    plan = make_plan(problem, variant, splits)
    if plan["workspace_bytes"]:
        regions["workspace"] = _pages("workspace", plan["workspace_bytes"] // 2)
        plan = make_plan(problem, variant, splits, regions["workspace"].ctypes.data)
    for step in plan["launches"]:
        arguments = bytearray.fromhex(step["arguments"])
        if order and step["variant"] != "reduce":
            assert len(arguments) == 144
            _ORDER.pack_into(arguments, _ORDER_AT, *order)
        kernel(target, step["kernel"]).launch(
            bytes(arguments), regions, grid=step["grid"], block=step["block"], read_only=("a", "b")
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
