# SPDX-License-Identifier: MIT
"""A modelled launch as a timeline in the JSON format of ui.perfetto.dev and chrome://tracing.

The format is the "Trace Event Format" (github.com/catapult-project/catapult, docs.google.com/document/d/
1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). A process is a compute unit of an XCD, a thread is a wave slot of one of its
SIMDs; slices are instructions by class, and counters show what was in flight. One microsecond of the timeline is one microsecond of the
modelled clock, which is in the metadata.

Times are whole nanoseconds, the resolution of Perfetto; `cycle` contains the clock of each issue. Slices of a track have to nest. A wave
may issue while an earlier instruction of its own still occupies a unit: the slice of the earlier one then ends there, and `unit_cycles`
gives how long the unit is really busy.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import _timing
from .._hot_loop import CLASS_OF_UNIT
from .._simulator import UNITS
from .model_error import ModelError, unknown_problem

XCD = 0  # the model keeps events of this one
CLASS_NAMES = {
    "mfma": "MFMA",
    "valu": "VALU",
    "salu": "SALU",
    "scalar_memory": "SMEM",
    "lds": "LDS",
    "vector_memory": "VMEM",
    "wait": "wait",
}


def trace(launch: _timing.ModelledLaunch, error: ModelError | None = None) -> dict[str, Any]:
    """The JSON object of one launch whose events were kept: `hipkittens.timing(timeline=...)`. ValueError if none were.

    `error`: that of the class of its problem; by default it is not calibrated.
    """
    if not launch.events:
        raise ValueError(
            f"the launch of {launch.kernel} kept no events; open hipkittens.timing with timeline=1 or more, and note that a "
            "compute unit without workgroups has none"
        )
    error = error or unknown_problem(launch.device)
    clock = launch.report["details_at_clock_mhz"]
    events = list(launch.events)
    return {
        # In order of time, names first; the outer one of two slices that begin together stays before the inner one.
        "traceEvents": sorted(_events(launch, events, clock), key=lambda event: event.get("ts", -1.0)),
        "displayTimeUnit": "ns",
        "otherData": {
            "kernel": launch.kernel,
            "device": launch.device,
            "modelled": "every time is modelled, none is measured",
            "error": error.text,
            "clock_mhz": clock,
            "cycles": launch.cycles,
            "microseconds": launch.microseconds,
            "compute_units": len({event.compute_unit for event in events}),
            "complete": not launch.report["timeline_is_full"],
        },
    }


def write(timeline: dict[str, Any], path: str) -> None:
    """Writes JSON, compressed if the name ends in .gz; the same timeline gives the same bytes."""
    data = json.dumps(timeline, separators=(",", ":")).encode()
    Path(path).write_bytes(gzip.compress(data, mtime=0) if path.endswith(".gz") else data)


def _events(launch: _timing.ModelledLaunch, events: list[Any], clock: float) -> Iterator[dict[str, Any]]:
    row_of = {row["address"]: row for row in launch.instructions}
    stalls = launch.report["stall_names"]
    tracks = _tracks(events)
    for unit in sorted({event.compute_unit for event in events}):
        name = f"XCD {XCD} CU {unit}, {launch.device}, modelled at {clock:.0f} MHz"
        yield {"name": "process_name", "ph": "M", "pid": unit, "tid": 0, "args": {"name": name}}
    for (unit, simd, slot), track in sorted(set((key[:3], value) for key, value in tracks.slots())):
        args = {"name": f"SIMD {simd} slot {slot}"}
        yield {"name": "thread_name", "ph": "M", "pid": unit, "tid": track, "args": args}
        yield {
            "name": "thread_sort_index",
            "ph": "M",
            "pid": unit,
            "tid": track,
            "args": {"sort_index": track},
        }
    waves = {_wave(event): event for event in events if event.is_wave}
    ends = _ends(events, waves)

    def place(event: Any, end: float) -> dict[str, Any]:
        begin = _nanoseconds(event.begin, clock)
        length = _nanoseconds(end, clock) - begin
        return {
            "ph": "X",
            "pid": event.compute_unit,
            "tid": tracks.of(event),
            "ts": begin / 1000,
            "dur": length / 1000,
        }

    for event in (
        waves.values()
    ):  # before their instructions: the first of two slices that begin together is the outer one
        name = f"workgroup {event.workgroup} wave {event.wave}"
        yield {"name": name, "cat": "wave", "args": {}, **place(event, event.begin + event.duration)}
    for event, end in zip(events, ends, strict=True):
        if event.is_wave:
            continue
        kind = CLASS_NAMES[CLASS_OF_UNIT[UNITS[event.unit]]]
        row = row_of[event.address]
        args = {"instruction": row["text"], "address": f"{event.address:#x}", "cycle": round(event.begin)}
        args |= {name: row[name] for name in ("source", "called_from") if row[name]}
        if end < event.begin + event.duration:
            args["unit_cycles"] = round(event.duration)
        if event.latency:
            args["latency_cycles"] = round(event.latency)
        if event.stalled > 0:
            args |= {"waited_cycles": round(event.stalled, 1), "waited_for": stalls[event.stall]}
        yield {"name": kind, "cat": kind, "args": args, **place(event, end)}
    yield from _counters(events, clock)


def _nanoseconds(cycle: float, clock_mhz: float) -> int:
    return round(cycle / clock_mhz * 1e3)


def _wave(event: Any) -> tuple[int, int, int, int]:
    return event.compute_unit, event.simd, event.workgroup, event.wave


def _ends(events: list[Any], waves: Mapping[tuple[int, int, int, int], Any]) -> list[float]:
    """The clock at which each slice ends: not after its wave ends or issues again."""
    until = {wave: event.begin + event.duration for wave, event in waves.items()}
    ends = [0.0] * len(events)
    for index in reversed(range(len(events))):
        event = events[index]
        if not event.is_wave:
            ends[index] = min(event.begin + event.duration, until.get(_wave(event), float("inf")))
            until[_wave(event)] = event.begin
    return ends


class _tracks:
    """A track for each wave: the first of its SIMD on which no other wave is alive."""

    def __init__(self, events: list[Any]) -> None:
        self._track: dict[tuple[int, int, int, int], int] = {}
        self._slot: dict[tuple[int, int, int, int], int] = {}
        first_last: dict[tuple[int, int, int, int], tuple[float, float]] = {}
        for event in events:
            key = _wave(event)
            begin, end = first_last.get(key, (event.begin, event.begin))
            length = event.duration if event.is_wave else 0.0
            first_last[key] = min(begin, event.begin), max(end, event.begin + length)
        free: dict[tuple[int, int], list[float]] = defaultdict(list)
        for key, (begin, end) in sorted(first_last.items(), key=lambda item: item[1]):
            slots = free[key[:2]]
            slot = next((index for index, until in enumerate(slots) if until <= begin), len(slots))
            slots[slot : slot + 1] = [end]
            self._slot[key] = slot
            self._track[key] = 1 + key[1] * 64 + slot

    def of(self, event: Any) -> int:
        return self._track[_wave(event)]

    def slots(self) -> Iterator[tuple[tuple[int, int, int], int]]:
        for key, track in self._track.items():
            yield (key[0], key[1], self._slot[key]), track


def _counters(events: list[Any], clock: float) -> Iterator[dict[str, Any]]:
    """For each compute unit: vector memory and LDS operations in flight, busy matrix cores, LDS bank conflicts so far."""
    changes: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event.is_wave:
            continue
        kind = CLASS_OF_UNIT[UNITS[event.unit]]
        if event.latency and kind in ("vector_memory", "lds"):
            name = "outstanding " + CLASS_NAMES[kind]
            changes[event.compute_unit, name] += [
                (event.begin, 1),
                (event.begin + event.latency, -1),
            ]
        if kind == "mfma":
            changes[event.compute_unit, "MFMA busy"] += [
                (event.begin, 1),
                (event.begin + event.duration, -1),
            ]
        if event.lds_conflicts:
            changes[event.compute_unit, "LDS conflict cycles"].append((event.begin, event.lds_conflicts))
    for (unit, name), steps in sorted(changes.items()):
        value = 0.0
        levels: dict[int, float] = {}
        for time, step in sorted(steps):
            value += step
            levels[_nanoseconds(time, clock)] = value
        before = None
        for time, level in levels.items():
            if level != before:
                yield {
                    "name": name,
                    "ph": "C",
                    "pid": unit,
                    "tid": 0,
                    "ts": time / 1000,
                    "args": {"value": level},
                }
            before = level
