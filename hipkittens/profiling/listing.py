# SPDX-License-Identifier: MIT
"""A modelled launch as a listing: the cost of each instruction, and a sentence on the kernel's bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .. import _timing
from .._hot_loop import CLASS_OF_UNIT, CLASSES
from .limits import MEMORY_BANDWIDTH
from .main_loop import MainLoop, main_loop
from .model_error import ModelError, unknown_problem

# What a wave waits for, by the model's name for it (csrc/simulator/timing/stalls.h).
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
# From this share on a unit is the bottleneck of a kernel, and not the waits, which are then for this unit.
_BOUND = 0.75
_FULL_BANDWIDTH = 0.65  # of the data sheet's: about what such chips reach in a copy
_FEW = 0.1  # of the waits for one reason: below that no single instruction stands out


@dataclass(frozen=True)
class Line:
    """One instruction that was issued.

    address  from the start of the text
    source   "file:line", or "" if the code object does not contain it
    called_from  the innermost inlined call around it that is in another folder, such as the line of a kernel that calls a
             primitive of csrc/tiles; "" if there is none
    issues   the number of waves that issued it, in the XCDs simulated in detail
    clocks   for which waves waited before they could issue it, summed
    stalls   these clocks by reason
    """

    address: int
    text: str
    source: str
    called_from: str
    unit: str
    issues: int
    clocks: float
    stalls: dict[str, float]

    @property
    def place(self) -> str:
        """Both lines as text, such as "csrc/tiles/memory_intrinsics.h:98, called from softmax.cpp:21"; or ""."""
        return self.source + f", called from {self.called_from}" * bool(self.called_from)

    @property
    def reason(self) -> str:
        """The reason for most of its clocks, or ""."""
        return max(self.stalls, key=self.stalls.__getitem__) if self.stalls else ""


@dataclass(frozen=True)
class Listing:
    """A launch: its figures, a sentence on its bottleneck, and its instructions in the order of their addresses.

    issue_share  of all issues, by class of instruction
    main_loop    None for a kernel without loops
    error        of the class of measured kernels that is most similar
    """

    kernel: str
    device: str
    cycles: float
    microseconds: float
    error: ModelError
    bottleneck: str
    occupancy: str
    busy: dict[str, float]
    main_loop: MainLoop | None
    issue_share: dict[str, float]
    caches: dict[str, float]
    stalls: dict[str, float]
    lines: tuple[Line, ...]

    def to_dict(self) -> dict[str, Any]:
        busy = self.main_loop.mfma_busy if self.main_loop else None
        return asdict(self) | {"modelled": True, "main_loop_mfma_busy": busy}


def listing(launch: _timing.ModelledLaunch, error: ModelError | None = None) -> Listing:
    """`error`: that of the class of its problem; by default it is not calibrated."""
    lines = tuple(
        Line(
            row["address"],
            row["text"],
            row["source"],
            row["called_from"],
            row["unit"],
            row["issues"],
            sum(row["stalls"].values()),
            row["stalls"],
        )
        for row in launch.instructions
    )
    loop = main_loop(launch)
    return Listing(
        launch.kernel,
        launch.device,
        launch.cycles,
        launch.microseconds,
        error or unknown_problem(launch.device),
        bottleneck(launch, lines, loop),
        occupancy(launch.report),
        launch.busy,
        loop,
        issue_share(lines),
        launch.caches,
        launch.stalls(),
        lines,
    )


def issue_share(lines: Sequence[Line]) -> dict[str, float]:
    """Shares of all issues, by class of instruction (hipkittens._hot_loop.CLASSES)."""
    issues = dict.fromkeys(CLASSES, 0)
    for line in lines:
        issues[CLASS_OF_UNIT[line.unit]] += line.issues
    total = sum(issues.values())
    return {name: count / total if total else 0.0 for name, count in issues.items()}


def occupancy(report: dict[str, Any]) -> str:
    """How the launch fills the chip, as text."""
    count, waves = report["workgroups_per_compute_unit"], report["waves_per_workgroup"]
    return (
        f"{_count(report['workgroups'], 'workgroup')} of {_count(waves, 'wave')}, {report['rounds']:.2f} rounds; a compute "
        f"unit holds {count}, limited by {report['occupancy_limited_by']}; {report['waves_per_simd']:.2f} waves a SIMD"
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + "s" * (number != 1)


def bottleneck(launch: _timing.ModelledLaunch, lines: Sequence[Line], loop: MainLoop | None) -> str:
    """One sentence. The bottleneck is a unit that is busy most of the time, otherwise memory, otherwise the longest wait."""
    unit = max(launch.busy, key=launch.busy.__getitem__)
    share = launch.busy[unit]
    in_loop = loop.mfma_busy if loop else None
    if share >= _BOUND:
        more = ""
        if unit == "lds" and launch.report["lds_conflict_cycles"]:
            more = f", bank conflicts take {launch.report['lds_conflict_cycles']:.3g} of their clocks"
        if unit == "matrix" and in_loop is not None:
            more = f", {_percent(in_loop)} in the main loop"
        return f"{_UNITS[unit]} {_percent(share)} of the time{more}."
    bandwidth = hbm_bandwidth(launch)
    of_peak = bandwidth / MEMORY_BANDWIDTH[launch.device]
    if of_peak >= _FULL_BANDWIDTH:
        return f"HBM-bound: {_terabytes(bandwidth)}, {_percent(of_peak)} of the data sheet's."
    if loop is not None and in_loop is not None and in_loop >= _BOUND:
        assert loop.clocks_share is not None
        outside = [line for line in lines if not loop.first <= line.address <= loop.last]
        waits = f"; outside it, {_wait(outside)}" if any(line.clocks for line in outside) else ""
        return (
            f"MFMA-bound in the main loop, where the matrix cores work {_percent(in_loop)} of the time, but that is "
            f"{_percent(loop.clocks_share)} of the kernel's{waits}{_room(launch.report)}."
        )
    if not any(line.clocks for line in lines):
        return "Nothing waits: the kernel is as long as its instructions take to issue."
    wait = _wait(lines)
    if "vmcnt" in wait:
        wait += f"; HBM moves {_terabytes(bandwidth)}, {_percent(of_peak)} of the data sheet's"
    return (
        f"{wait[0].upper()}{wait[1:]}; the busiest unit, {unit.replace('_', ' ')}, works {_percent(share)} of the "
        f"time{_room(launch.report)}."
    )


def _wait(lines: Sequence[Line]) -> str:
    """What waves wait for longest at these lines, and where."""
    sums: dict[str, float] = {}
    for line in lines:
        for reason, clocks in line.stalls.items():
            sums[reason] = sums.get(reason, 0.0) + clocks
    reason = max(sums, key=sums.__getitem__)
    most = max(range(len(lines)), key=lambda index: lines[index].stalls.get(reason, 0.0))
    share = lines[most].stalls[reason] / sums[reason]
    # A wave that waits at a barrier does so before its next instruction: report the barrier itself.
    place = lines[most]
    if reason == "barrier":
        place = next((line for line in reversed(lines[:most]) if line.text == "s_barrier"), place)
    where = f"{place.address:#x} `{place.text}`" + (f" ({place.place})" if place.place else "")
    spread = "" if share >= _FEW else "no more than "
    return (
        f"waiting for {REASONS[reason]}: {_percent(sums[reason] / sum(sums.values()))} of the clocks that waves wait, "
        f"{spread}{_percent(share)} of them at {where}"
    )


def hbm_bandwidth(launch: _timing.ModelledLaunch) -> float:
    """Average HBM traffic of the launch in bytes/s."""
    moved: float = launch.caches["hbm_bytes_read"] + launch.caches["hbm_bytes_written"]
    return moved / launch.microseconds * 1e6


def _terabytes(bandwidth: float) -> str:
    return f"{bandwidth * 1e-12:.2f} TB/s"


def _room(report: dict[str, Any]) -> str:
    """Why there are not more waves to hide the latency."""
    if report["rounds"] < 1:
        return f", and the grid fills {_percent(report['rounds'])} of the places for workgroups"
    return f", and occupancy is {report['waves_per_simd']:.1f} waves a SIMD, limited by {report['occupancy_limited_by']}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.2g} %"
