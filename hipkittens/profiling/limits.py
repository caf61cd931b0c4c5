# SPDX-License-Identifier: MIT
"""The minimum time for a problem by a chip's data sheet."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _timing
from .problems import Problem

# FLOP per clock and compute unit, dense bfloat16 (AMD CDNA3 and CDNA4 white papers).
MATRIX_RATE = {"gfx942": 2048, "gfx950": 4096}
# Bytes/s (AMD data sheets; MI308X has MI300X's memory).
MEMORY_BANDWIDTH = {"MI300X": 5.3e12, "MI308X": 5.3e12, "MI325X": 6.0e12, "MI350X": 8.0e12, "MI355X": 8.0e12}


@dataclass(frozen=True)
class Limit:
    """microseconds  the minimum for matrix cores at peak clock, or memory at peak bandwidth
    unit          "matrix" or "memory": which of the two
    """

    microseconds: float
    unit: str


def peak_flops(device: str) -> float:
    """FLOP/s of the matrix cores in bfloat16, at the peak clock."""
    value = {row["name"]: row["value"] for row in _timing.parameters(device)}
    units = value["xcds"] * value["compute_units_per_xcd"]
    return units * MATRIX_RATE[_timing.DEVICES[device]] * value["clock_peak"] * 1e6


def limit(problem: Problem, device: str) -> Limit:
    matrix = (problem.flops or 0.0) / peak_flops(device) * problem.bits / 16 * 1e6
    memory = problem.bytes / MEMORY_BANDWIDTH[device] * 1e6
    return Limit(matrix, "matrix") if matrix >= memory else Limit(memory, "memory")
