# SPDX-License-Identifier: MIT
"""A modelled launch as a timeline in the JSON that ui.perfetto.dev and chrome://tracing read.

The format is the "Trace Event Format" (github.com/catapult-project/catapult, docs.google.com/document/d/
1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). A process is a compute unit of an XCD, a thread is a wave slot of one of its
SIMDs; slices are instructions by class, and counters say what was in flight. One microsecond of the timeline is one of the
modelled clock, which is among the metadata.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import _timing
from .._hot_loop import CLASS_OF_UNIT
from .._simulator import UNITS
from .model_error import ModelError

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


def trace(launch: _timing.ModelledLaunch, error: ModelError) -> dict[str, Any]:
    """The JSON object of one launch whose events were kept (`hipkittens.timing(timeline=...)`), and of its class's error."""
    clock = launch.report["details_at_clock_mhz"]
    events = list(launch.events)
    return {
        "traceEvents": [*_events(launch, events, clock)],
        "displayTimeUnit": "ns",
        "otherData": {
            "kernel": launch.kernel,
            "device": launch.device,
            "modelled": "every time is modelled, none is measured",
            "error": error.text,
            "clock_mhz": clock,
            "cycles": launch.cycles,
            "microseconds": launch.microseconds,
            "complete": not launch.report["timeline_is_full"],
        },
    }


def write(timeline: dict[str, Any], path: str) -> None:
    """As JSON, compressed if the name ends in .gz; the same timeline gives the same bytes."""
    data = json.dumps(timeline, separators=(",", ":")).encode()
    Path(path).write_bytes(gzip.compress(data, mtime=0) if path.endswith(".gz") else data)


def _events(launch: _timing.ModelledLaunch, events: list[Any], clock: float) -> Iterator[dict[str, Any]]:
    text_of = {row["address"]: (row["text"], row["source"]) for row in launch.instructions}
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
    for event in events:
        place = {"pid": event.compute_unit, "tid": tracks.of(event), "ts": event.begin / clock}
        if event.is_wave:
            name = f"workgroup {event.workgroup} wave {event.wave}"
            yield {"name": name, "cat": "wave", "ph": "X", "dur": event.duration / clock, "args": {}, **place}
            continue
        kind = CLASS_NAMES[CLASS_OF_UNIT[UNITS[event.unit]]]
        text, source = text_of[event.address]
        args: dict[str, Any] = {"instruction": text, "address": f"{event.address:#x}"}
        if source:
            args["source"] = source
        if event.latency:
            args["latency_cycles"] = event.latency
        if event.stalled > 0:
            args |= {"waited_cycles": event.stalled, "waited_for": stalls[event.stall]}
        yield {"name": kind, "cat": kind, "ph": "X", "dur": event.duration / clock, "args": args, **place}
    yield from _counters(events, clock)


class _tracks:
    """A track for each wave: the first of its SIMD on which no other wave is alive."""

    def __init__(self, events: list[Any]) -> None:
        self._track: dict[tuple[int, int, int, int], int] = {}
        self._slot: dict[tuple[int, int, int, int], int] = {}
        first_last: dict[tuple[int, int, int, int], tuple[float, float]] = {}
        for event in events:
            key = self._key(event)
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

    @staticmethod
    def _key(event: Any) -> tuple[int, int, int, int]:
        return event.compute_unit, event.simd, event.workgroup, event.wave

    def of(self, event: Any) -> int:
        return self._track[self._key(event)]

    def slots(self) -> Iterator[tuple[tuple[int, int, int], int]]:
        for key, track in self._track.items():
            yield (key[0], key[1], self._slot[key]), track


def _counters(events: list[Any], clock: float) -> Iterator[dict[str, Any]]:
    """Of each compute unit: vector memory and LDS operations under way, matrix cores at work, LDS bank conflicts so far."""
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
        levels: dict[float, float] = {}
        for time, step in sorted(steps):
            value += step
            levels[time] = value
        for time, level in levels.items():
            yield {
                "name": name,
                "ph": "C",
                "pid": unit,
                "tid": 0,
                "ts": time / clock,
                "args": {"value": level},
            }
