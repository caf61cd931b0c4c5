# SPDX-License-Identifier: MIT
"""Figures that others published for their kernels on real GPUs: published.csv, each row with its source. None of them is ours."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from pathlib import Path

from .problems import Problem


@dataclass(frozen=True)
class Published:
    microseconds: float
    source: str


@functools.cache
def _rows() -> dict[tuple[str, str, str, str], Published]:
    """The fastest for each operation, device, library and shape."""
    fastest: dict[tuple[str, str, str, str], Published] = {}
    with open(Path(__file__).with_name("published.csv"), newline="") as file:
        for row in csv.DictReader(file):
            key = row["op"], row["device"], row["library"], row["shape"]
            known = Published(float(row["microseconds"]), row["source"])
            if key not in fastest or known.microseconds < fastest[key].microseconds:
                fastest[key] = known
    return fastest


@functools.cache
def libraries() -> tuple[str, ...]:
    """Every library with a published figure, by name."""
    return tuple(sorted({library for _, _, library, _ in _rows()}))


def libraries_at(problem: Problem, device: str) -> list[str]:
    """Those with a figure for exactly this shape and device, the fastest first."""
    found = {library: figure(problem, device, library) for library in libraries()}
    return sorted(
        (library for library, known in found.items() if known),
        key=lambda library: _rows()[problem.operation, device, library, problem.shape].microseconds,
    )


def figure(problem: Problem, device: str, library: str) -> Published | None:
    """The published figure of `library` for exactly this shape and device, the fastest if there are several; or None."""
    return _rows().get((problem.operation, device, library, problem.shape))
