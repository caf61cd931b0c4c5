# SPDX-License-Identifier: MIT
"""The main loop of a modelled launch, and how busy the matrix cores are while waves execute it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _timing
from .._hot_loop import CLASS_OF_UNIT, Executed, loop_of
from .._simulator import UNITS

_BRANCH_BYTES = 4


@dataclass(frozen=True)
class MainLoop:
    """The innermost loop in which at least half of the instructions issued in any loop are issued.

    first, last   addresses of its first and last instruction, from the start of the text
    instructions  number of its instructions that were issued at all, and how many of them are matrix instructions
    issue_share   of all issues of the launch
    clocks_share  share of the time during which the SIMDs have waves that waves spend in the loop
    mfma_busy     share of the latter time in which the matrix cores work for it

    The last two refer to the compute unit whose timeline was kept, and are None without one.
    """

    first: int
    last: int
    instructions: int
    mfma_instructions: int
    issue_share: float
    clocks_share: float | None
    mfma_busy: float | None


def main_loop(launch: _timing.ModelledLaunch) -> MainLoop | None:
    """None for a kernel without loops."""
    if not launch.instructions:
        return None
    executed = _executed(launch.instructions)
    head, inside = loop_of(executed)
    if head is None:
        return None
    issues = sum(instruction.executions for instruction in executed)
    clocks_share, mfma_busy = _in_time(launch.events, {instruction.address for instruction in inside})
    return MainLoop(
        inside[0].address,
        inside[-1].address,
        len(inside),
        sum(CLASS_OF_UNIT[instruction.unit] == "mfma" for instruction in inside),
        sum(instruction.executions for instruction in inside) / issues,
        clocks_share,
        mfma_busy,
    )


def _executed(rows: Sequence[dict[str, Any]]) -> list[Executed]:
    """The model reports issued instructions without sizes: except for branches, an instruction ends where the next one begins."""
    found = []
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        branches = after is None or row["unit"] == "branch" or row["text"].startswith("s_endpgm")
        size = _BRANCH_BYTES if branches else after["address"] - row["address"]
        found.append(Executed(row["address"], size, row["text"], row["unit"], row["issues"], 0, 0))
    return found


def _in_time(events: Sequence[Any], addresses: set[int]) -> tuple[float | None, float | None]:
    """For the first compute unit: the share of time that its SIMDs spend in the loop, and of that the share of their matrix cores."""
    matrix = UNITS.index("matrix")
    stays: dict[int, list[tuple[float, float]]] = defaultdict(list)  # of waves in the loop, by SIMD
    lives: dict[int, list[tuple[float, float]]] = defaultdict(list)
    begun: dict[tuple[int, int, int], tuple[float, float]] = {}
    work = 0.0
    unit = min((event.compute_unit for event in events), default=None)
    for event in events:
        if event.compute_unit != unit:
            continue
        simd, begin = event.simd, event.begin
        if event.is_wave:
            lives[simd].append((begin, begin + event.duration))
            continue
        wave = (simd, event.workgroup, event.wave)
        if event.address not in addresses:
            if wave in begun:
                stays[simd].append(begun.pop(wave))
            continue
        # The wait of a wave before an instruction belongs to the loop if the wave was in it already.
        first = begun[wave][0] if wave in begun else begin
        is_matrix = event.unit == matrix
        begun[wave] = first, begin + (event.duration if is_matrix else 0.0)
        work += event.duration if is_matrix else 0.0
    for (simd, _, _), stay in begun.items():
        stays[simd].append(stay)
    inside = sum(_covered(spans) for spans in stays.values())
    alive = sum(_covered(spans) for spans in lives.values())
    if not inside or not alive:
        return None, None
    return inside / alive, work / inside


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
