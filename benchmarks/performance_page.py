# SPDX-License-Identifier: MIT
"""docs/performance.md and its pictures, from the rows of docs/performance.csv and what was published of others."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import performance_traces
from performance_rows import FAMILIES, ROOT, TABLES, Entry, Family

from hipkittens import operations
from hipkittens.operations._tables import DEVICES
from hipkittens.profiling import bench, plot, published

PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
# Upstream's sizes, for the figures that others published beyond what is modelled here.
_PUBLISHED_SIZES = (1024, 2048, 4096, 8192, 16384)
_NAMES = {
    "aiter": "AITER",
    "triton": "Triton",
    "torch": "PyTorch",
    "torch_compile": "torch.compile",
    "hipblaslt": "hipBLASLt",
    "composable_kernel": "CK",
    "hipkittens-upstream": "HipKittens",
}

_OPENING = """# Performance, modelled

<!-- written by benchmarks/performance_tables.py from docs/performance.csv; change these, not this page -->

**No GPU has run a kernel of this package.** Every time of ours below, and of Triton's and AITER's kernels where it says so, is
modelled: the very code objects in the [cycle model](timing_model.md). Beside each stands the model's mean error on the class of
measured kernels that is most like it, none of which it was fitted on ([calibration](calibration.md)). Figures called *published*
were measured by others on real GPUs; `hipkittens/profiling/published.csv` has the source of each.

```sh
python benchmarks/performance_tables.py      # rows, page and plots again, of what has changed
hipkittens bench gemm --compare all          # one of the tables, on one device
```

[performance.csv](performance.csv) has the rows with kernels, clocks and what each was made from. Beside another library, *x 1.10*
means that ours is 1.10 times as fast. Of AITER's and Triton's kernels the fastest of a few counts; AITER's bf16 GEMM objects in
its wheel are for few rows, and its backward is without row sums of dO * O and conversions. Launch overhead is in no modelled
time, and in most published ones. MFMA is how busy the matrix cores are while waves are in the main loop.
"""


def picture(family: Family) -> str:
    shape = re.sub(r"[^a-z0-9]+", "_", family.shape.lower().replace("{n}", "n")).strip("_")
    return f"performance_{family.operation}_{shape}.png"


def page(entries: Mapping[Any, Entry]) -> str:
    parts = [_OPENING, _summary(entries)]
    known = operations.benchmarks()
    for name in TABLES:
        parts.append(f"## {known[name].heading}\n")
        for family in FAMILIES:
            if family.table == name:
                parts += _family(family, entries)
    parts.append(performance_traces.section())
    return "\n".join(parts)


def _rows(family: Family, device: str, entries: Mapping[Any, Entry]) -> dict[tuple[int, str], bench.Row]:
    """By size and library: what was run, and what was published of any library, with speedups."""
    found = {}
    for size in sorted({*_PUBLISHED_SIZES, *family.sizes.get(device, ())}):
        problem = family.problem(size)
        libraries = [bench.OURS, *family.peers, *published.libraries_at(problem, device)]
        rows = []
        for library in dict.fromkeys(libraries):
            known = bench.published_row(problem, device, library)
            entry = entries.get((family.operation, device, problem.shape, library))
            if entry is not None:
                names = [name for name in vars(known) if name.startswith("published_")]
                rows.append(dataclasses.replace(entry.row, **{name: getattr(known, name) for name in names}))
            elif known.kind == "published":
                rows.append(known)
        found |= {(size, row.library): row for row in bench.beside_ours(rows)}
    return found


def _rate(row: bench.Row, was_published: bool) -> float | None:
    if operations.benchmarks()[row.operation].flops is not None:
        return row.published_tflops if was_published else row.tflops
    return row.published_gbps if was_published else row.gbps


def _family(family: Family, entries: Mapping[Any, Entry]) -> Iterable[str]:
    tables = []
    for device in DEVICES:
        rows = _rows(family, device, entries)
        sizes = [size for size, library in rows if library == bench.OURS]
        if sizes:
            tables.append(_table(family, device, rows, sizes, entries))
    if tables:
        yield f"### {family.title}\n"
        yield f"![{family.title}: rates over sizes, a panel for each device](images/{picture(family)})\n"
        yield from tables


def _table(
    family: Family,
    device: str,
    rows: Mapping[tuple[int, str], bench.Row],
    sizes: Sequence[int],
    entries: Mapping[Any, Entry],
) -> str:
    unit = "TFLOP/s" if family.problem(sizes[0]).flops is not None else "GB/s"
    libraries = dict.fromkeys(library for size, library in rows if size in sizes and library != bench.OURS)
    columns = []  # library, whether published
    for was_published in (False, True):
        for library in libraries:
            having = [
                rows[size, library]
                for size in sizes
                if (size, library) in rows
                and (
                    rows[size, library].published_microseconds
                    if was_published
                    else rows[size, library].microseconds
                )
            ]
            if having:
                columns.append((library, was_published))
    has_mfma = operations.benchmarks()[family.operation].flops is not None
    head = [device, f"ours, modelled {unit}", "µs", "error", "of limit"] + ["MFMA"] * has_mfma
    head += [f"{_NAMES[library]}, {'published' if known else 'modelled'}" for library, known in columns]
    lines = [head, ["---"] * len(head)]
    for size in sizes:
        ours = rows[size, bench.OURS]
        entry = entries[family.operation, device, ours.shape, bench.OURS]
        line = [
            f"N = {size}",
            f"**{_rate(ours, False):,.0f}**",
            f"{ours.microseconds:,.1f}",
            f"±{ours.error_percent:.0f} %",
            f"{100 * ours.share_of_limit:.0f} % {ours.limited_by}",
        ]
        if has_mfma:
            line.append(
                "" if entry.main_loop_mfma_busy is None else f"{100 * entry.main_loop_mfma_busy:.0f} %"
            )
        for library, was_published in columns:
            row = rows.get((size, library))
            speedup = row and (row.speedup_over_published if was_published else row.speedup)
            line.append(f"{_rate(row, was_published):,.0f} (x {speedup:.2f})" if row and speedup else "")
        lines.append(line)
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    last = entries[family.operation, device, rows[sizes[-1], bench.OURS].shape, bench.OURS]
    return f"{text}\n\nAt N = {sizes[-1]}: {_code(last.bottleneck)}\n"


def _code(sentence: str) -> str:
    """Kernel names have underscores, which Markdown would take for emphasis."""
    return re.sub(r"\b(hipkittens_\w+)", r"`\1`", sentence)


def _summary(entries: Mapping[Any, Entry]) -> str:
    """Geometric means by table and device."""
    lines = [
        "| | device | shapes | over AITER's objects, modelled | over Triton's kernels, modelled | over the fastest published |",
        "|---|---|---|---|---|---|",
    ]
    for name in TABLES:
        for device in DEVICES:
            of: dict[str, list[float]] = {"aiter": [], "triton": [], "published": []}
            shapes = 0
            for family in FAMILIES:
                if family.table != name:
                    continue
                rows = _rows(family, device, entries)
                for size in (size for size, library in rows if library == bench.OURS):
                    shapes += 1
                    here = [row for (other, _), row in rows.items() if other == size]
                    for library in ("aiter", "triton"):
                        of[library] += [row.speedup for row in here if row.library == library and row.speedup]
                    known = [row.speedup_over_published for row in here if row.speedup_over_published]
                    of["published"] += [min(known)] if known else []
            if shapes:
                cells = [_mean(values) for values in of.values()]
                lines.append(
                    f"| {name.replace('_', ' ')} | {device} | {shapes} | " + " | ".join(cells) + " |"
                )
    return (
        "## In short\n\nGeometric means of how many times as fast ours is, and of how many shapes.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def _mean(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"x {math.exp(sum(map(math.log, values)) / len(values)):.2f} ({len(values)})"


def draw(family: Family, entries: Mapping[Any, Entry]) -> None:
    """A panel for each device of which there is a row of ours."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    by_device = {device: _rows(family, device, entries) for device in DEVICES}
    shown = {
        device: rows
        for device, rows in by_device.items()
        if any(library == bench.OURS for _, library in rows)
    }
    if not shown:
        return
    figure = Figure(figsize=(4.2 * len(shown) + 2.2, 3.4), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    labels = {}
    for axes, (device, rows) in zip(panels, shown.items(), strict=True):
        # Along the axis is the size of the family, which for norms is not that of the problem.
        sized = [dataclasses.replace(row, size=size) for (size, _), row in rows.items()]
        rate = "TFLOP/s" if sized[0].tflops is not None or sized[0].published_tflops is not None else "GB/s"
        plot.draw(axes, sized, rate)
        axes.set_xlabel("N")
        axes.set_title(device)
        labels |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    for axes in panels[1:]:
        axes.set_ylabel("")
    panels[0].set_ylim(0, 1.05 * max(max(line.get_ydata()) for axes in panels for line in axes.get_lines()))
    figure.legend(labels.values(), labels.keys(), loc="outside right upper", fontsize="small")
    figure.suptitle(f"{family.title}, bfloat16; bands: mean error of the model")
    plot.save(figure, str(IMAGES / picture(family)))


def write(entries: Mapping[Any, Entry]) -> None:
    for family in FAMILIES:
        draw(family, entries)
    performance_traces.draw_all()
    PAGE.write_text(page(entries))
