# SPDX-License-Identifier: MIT
"""Writes the two traces of docs/performance.md, and a picture of each from the same data.

`benchmarks/performance_tables.py --page --traces` runs this.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hipkittens import cli
from hipkittens.profiling import plot

ROOT = Path(__file__).resolve().parent.parent
# Classes of instructions as named by `hipkittens trace`.
COLOURS = {
    "MFMA": "#d62728",
    "VALU": "#1f77b4",
    "SALU": "#9edae5",
    "SMEM": "#8c564b",
    "LDS": "#2ca02c",
    "VMEM": "#9467bd",
    "wait": "#c7c7c7",
}


@dataclass(frozen=True)
class Trace:
    name: str
    title: str
    arguments: tuple[str, ...]

    @property
    def path(self) -> Path:
        return ROOT / "docs" / "traces" / f"{self.name}.json.gz"

    @property
    def picture(self) -> Path:
        return ROOT / "docs" / "images" / f"trace_{self.name}.png"

    @property
    def command(self) -> str:
        return f"hipkittens trace {' '.join(self.arguments)} -o docs/traces/{self.path.name}"


TRACES = (
    Trace(
        "gemm_eight_waves",
        "a GEMM with two groups of four waves half a phase apart",
        ("gemm", "--shape", "4096x4096x512", "--device", "MI355X"),
    ),
    Trace(
        "attention_forward",
        "attention forward",
        ("attention", "--shape", "B16H16N256D128", "--device", "MI355X"),
    ),
)


def make(trace: Trace) -> None:
    trace.path.parent.mkdir(exist_ok=True)
    assert cli.main(["trace", *trace.arguments, "-o", str(trace.path)]) == 0


def load(trace: Trace) -> dict[str, Any]:
    timeline: dict[str, Any] = json.loads(gzip.decompress(trace.path.read_bytes()))
    return timeline


def draw(trace: Trace) -> None:
    """Draws, at the top, the whole lifetime of a compute unit's waves; below, an interval from its middle, instruction by instruction."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    timeline = load(trace)
    events = timeline["traceEvents"]
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] == 0
    }
    slices = [event for event in events if event["ph"] == "X" and event["pid"] == 0]
    products = [event["ts"] for event in slices if event["cat"] == "MFMA"]
    begin, end = min(products), max(products)
    middle = begin + 0.5 * (end - begin)
    figure = Figure(figsize=(11, 7.5), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    rows = {track: row for row, track in enumerate(sorted(names))}
    panels = figure.subplots(3, 1, height_ratios=(3, 3, 1.2))
    whole = max(event["ts"] + event["dur"] for event in slices)
    for axes, (left, right) in zip(panels[:2], ((0.0, whole), (middle, middle + 1.0)), strict=True):
        for kind, colour in COLOURS.items():
            for track, row in rows.items():
                spans = [
                    (event["ts"], event["dur"])
                    for event in slices
                    if event["cat"] == kind and event["tid"] == track and left - 1 <= event["ts"] <= right
                ]
                axes.broken_barh(spans, (row - 0.4, 0.8), color=colour, linewidth=0)
        axes.set_xlim(left, right)
        axes.set_yticks(list(rows.values()), [names[track] for track in rows], fontsize="small")
        axes.invert_yaxis()
    panels[0].axvspan(middle, middle + 1.0, facecolor="none", edgecolor="black", linewidth=1)
    panels[0].set_title(f"{timeline['otherData']['kernel']}, {timeline['otherData']['device']}: modelled")
    panels[1].set_title("one microsecond of it", fontsize="medium")
    _counters(panels[2], events, whole)
    figure.legend(
        handles=[Patch(color=colour, label=kind) for kind, colour in COLOURS.items()],
        loc="outside right upper",
        fontsize="small",
    )
    plot.save(figure, str(trace.picture))


def _counters(axes: Any, events: list[Mapping[str, Any]], whole: float) -> None:
    def steps(name: str) -> list[tuple[float, float]]:
        return [
            (event["ts"], event["args"]["value"])
            for event in events
            if event["ph"] == "C" and event["pid"] == 0 and event["name"] == name
        ]

    cores = axes.twinx()
    times, values = zip(*steps("MFMA busy"), strict=True)
    cores.fill_between(times, values, step="post", color=COLOURS["MFMA"], alpha=0.4, linewidth=0)
    cores.set_ylim(0, 4)
    cores.set_ylabel("matrix cores busy", color=COLOURS["MFMA"], fontsize="small")
    for name in ("VMEM", "LDS"):
        axes.step(
            *zip(*steps(f"outstanding {name}"), strict=True), where="post", color=COLOURS[name], linewidth=0.8
        )
    axes.set_xlim(0, whole)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("µs of the modelled clock")
    axes.set_ylabel("outstanding", fontsize="small")


def section() -> str:
    lines = [
        "## Two traces\n",
        "Open them in [ui.perfetto.dev](https://ui.perfetto.dev). Tracks are the waves of one compute unit and slices are their "
        "instructions; clicking one shows its text, its source line and what it waited for. The pictures are drawn from the same files.\n",
    ]
    for trace in TRACES:
        said = load(trace)["otherData"]
        lines += [
            f"### {trace.title[0].upper()}{trace.title[1:]}\n",
            f"[{trace.path.name}](traces/{trace.path.name}): `{said['kernel']}` on {said['device']}, modelled at "
            f"{said['clock_mhz']:.0f} MHz, {said['microseconds']:.1f} µs, {said['error']}.\n",
            f"```sh\n{trace.command}\n```\n",
            f"![Waves of {trace.title} as tracks, instruction classes as colors](images/{trace.picture.name})\n",
        ]
    return "\n".join(lines)


def draw_all() -> None:
    for trace in TRACES:
        draw(trace)


def make_all() -> None:
    for trace in TRACES:
        make(trace)
