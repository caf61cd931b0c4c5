# SPDX-License-Identifier: MIT
"""A modelled launch as a listing: what each instruction cost, and a sentence about what holds the kernel up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .. import _timing
from .limits import MEMORY_BANDWIDTH

# What a wave waits for, by the model's word for it (csrc/simulator/timing/stalls.h).
REASONS = {
    "matrix_result": "the result of a matrix instruction",
    "vmcnt": "vmcnt",
    "lgkmcnt": "lgkmcnt",
    "counter_full": "room in a full wait counter",
    "barrier": "the other waves at s_barrier",
    "instruction_fetch": "instructions to be fetched",
    "branch": "branches",
    "vector_busy": "the vector unit",
    "matrix_busy": "the matrix core",
    "vector_memory_busy": "the queue of vector memory",
    "lds_busy": "the queue of LDS",
    "issue_slot": "a slot that another wave has",
}
_UNITS = {
    "matrix": "MFMA-bound: the matrix cores work",
    "lds": "LDS-bound: the banks of LDS work",
    "vector": "VALU-bound: the vector units work",
    "vector_memory": "bound by the vector memory pipe, which works",
}
# From here on a unit is what limits a kernel, and not the waits, which are then for it.
_BOUND = 0.75
_FULL_BANDWIDTH = 0.65  # of the data sheet's: about what chips of this kind reach in a copy


@dataclass(frozen=True)
class Line:
    """One instruction that was issued.

    address  from the start of the text
    source   "file:line", or "" where the code object does not say
    issues   by how many waves, in the XCDs simulated in detail
    clocks   for which waves waited before they could issue it, summed
    stalls   these clocks by reason
    """

    address: int
    text: str
    source: str
    unit: str
    issues: int
    clocks: float
    stalls: dict[str, float]

    @property
    def reason(self) -> str:
        """The reason of most of its clocks, or ""."""
        return max(self.stalls, key=self.stalls.__getitem__) if self.stalls else ""


@dataclass(frozen=True)
class Listing:
    """A launch: its figures, a sentence about its bottleneck, and its instructions in the order of their addresses."""

    kernel: str
    device: str
    cycles: float
    microseconds: float
    bottleneck: str
    occupancy: str
    busy: dict[str, float]
    caches: dict[str, float]
    stalls: dict[str, float]
    lines: tuple[Line, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"modelled": True}


def listing(launch: _timing.ModelledLaunch) -> Listing:
    lines = tuple(
        Line(
            row["address"],
            row["text"],
            row["source"],
            row["unit"],
            row["issues"],
            sum(row["stalls"].values()),
            row["stalls"],
        )
        for row in launch.instructions
    )
    return Listing(
        launch.kernel,
        launch.device,
        launch.cycles,
        launch.microseconds,
        bottleneck(launch, lines),
        occupancy(launch.report),
        launch.busy,
        launch.caches,
        launch.stalls(),
        lines,
    )


def occupancy(report: dict[str, Any]) -> str:
    """How the launch fills the chip, in words."""
    count, waves = report["workgroups_per_compute_unit"], report["waves_per_workgroup"]
    return (
        f"{_count(report['workgroups'], 'workgroup')} of {_count(waves, 'wave')}, {report['rounds']:.2f} rounds; a compute "
        f"unit holds {count}, limited by {report['occupancy_limited_by']}; {report['waves_per_simd']:.2f} waves a SIMD"
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + "s" * (number != 1)


def bottleneck(launch: _timing.ModelledLaunch, lines: Sequence[Line]) -> str:
    """One sentence. A unit that works most of the time is the bottleneck, then memory, then what waves wait for longest."""
    unit = max(launch.busy, key=launch.busy.__getitem__)
    share = launch.busy[unit]
    if share >= _BOUND:
        conflicts = launch.report["lds_conflict_cycles"] if unit == "lds" else 0
        more = f", bank conflicts take {conflicts:.3g} of their clocks" if conflicts else ""
        return f"{_UNITS[unit]} {_percent(share)} of the time{more}."
    moved = launch.caches["hbm_bytes_read"] + launch.caches["hbm_bytes_written"]
    bandwidth = moved / launch.microseconds * 1e6
    if bandwidth >= _FULL_BANDWIDTH * MEMORY_BANDWIDTH[launch.device]:
        of_peak = bandwidth / MEMORY_BANDWIDTH[launch.device]
        return f"HBM-bound: {bandwidth * 1e-12:.2f} TB/s, {_percent(of_peak)} of the data sheet's."
    sums = launch.stalls()
    if not sums:
        return "Nothing waits: the kernel is as long as its instructions take to issue."
    reason, clocks = next(iter(sums.items()))
    worst = max(lines, key=lambda line: line.stalls.get(reason, 0.0))
    where = f"{worst.address:#x} `{worst.text}`" + (f" ({worst.source})" if worst.source else "")
    return (
        f"Waiting for {REASONS[reason]}: {_percent(clocks / sum(sums.values()))} of the clocks that waves wait, "
        f"{_percent(worst.stalls[reason] / clocks)} of them at {where}; the busiest unit, {unit.replace('_', ' ')}, works "
        f"{_percent(share)} of the time{_room(launch.report)}."
    )


def _room(report: dict[str, Any]) -> str:
    """Why there are not more waves to hide the wait behind."""
    if report["rounds"] < 1:
        return f", and the grid fills {_percent(report['rounds'])} of the places for workgroups"
    return f", and occupancy is {report['waves_per_simd']:.1f} waves a SIMD, limited by {report['occupancy_limited_by']}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.2g} %"
