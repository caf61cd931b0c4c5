# SPDX-License-Identifier: MIT
"""Writes docs/performance.md and its plots, from the rows of docs/performance.csv and published figures of other libraries."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import performance_traces
from performance_rows import FAMILIES, PLAIN_LOADS, ROOT, TABLES, Entry, Family

from hipkittens import _timing, operations
from hipkittens.operations._tables import DEVICES
from hipkittens.profiling import bench, plot, published
from hipkittens.profiling.model_error import ModelError, error_of

PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
# Upstream's sizes, for the figures that others published in addition to what is modelled here.
_PUBLISHED_SIZES = (1024, 2048, 4096, 8192, 16384)
_NAMES = {
    "aiter": "AITER",
    "triton": "Triton",
    "torch": "PyTorch",
    "torch_compile": "torch.compile",
    "flydsl": "FlyDSL",
    PLAIN_LOADS: "ours with plain loads",
    "hipblaslt": "hipBLASLt",
    "composable_kernel": "CK",
    "hipkittens-upstream": "HipKittens",
}

# Cases in which AITER's objects in its wheel are the kernels of its published figures. Its published GEMMs are of other kernels. Its
# gradients consist of several kernels, not all of them in the wheel, and at N = 1024 of the rest of a call: in HipKittens'
# benchmark they take twice as long as in the model.
_SAME_KERNELS = ("attention",)

_OPENING = """# Performance, modelled

<!-- written by benchmarks/performance_tables.py from docs/performance.csv; change these, not this page -->

**No GPU has run a kernel of this package.** All our times below, and those of Triton's and AITER's kernels where marked, are
modelled: the same code objects run in the [cycle model](timing_model.md). Figures called *published* were measured by others on real
GPUs; `hipkittens/profiling/published.csv` lists the source of each.

```sh
python benchmarks/performance_tables.py --jobs 28   # update the rows that have changed, the page and the plots
hipkittens bench gemm --compare all                 # one of the tables, on one device
```

[performance.csv](performance.csv) contains the rows with kernels, clocks and the inputs of each; a test fails if a row does not match
the current kernels, launches (grids and arguments) and model.

How to read the tables:

* *x 1.10* means that ours is 1.10 times as fast. Next to a **modelled** time it is the ratio of two modelled times. For AITER's and
  Triton's kernels, the fastest of a few counts; for AITER's attention on gfx942, the default rounding of its Python package is used.
  The bf16 GEMM objects in AITER's wheel are for few rows. Its backward excludes the row sums of dO * O and conversions, so it
  looks faster than it is. *Triton's kernels* are plain kernels from this repository (tests/oracles/triton_kernels.py), not those of a
  library; the layer norm among them reads each row three times.
* Next to a **published** figure there is a ratio only if the model's error is known for a kernel that the same publisher measured at
  the same shape and device, which is AITER's attention. *x 0.98 corrected* is the published time divided by ours, multiplied by the
  modelled time of AITER's kernel divided by that publisher's measurement of it; all modelled times include launch overhead. Otherwise no
  ratio is given, since our time is modelled and theirs is measured. `with launch` is our rate including the overhead of each launch, which
  most published figures include and no other modelled one does.
* *Error* is the mean error of the model on measured kernels of the same operation on the same chip, none of which it was fitted on
  ([calibration](calibration.md)), and its bias, which is negative where the model is too fast. *Not calibrated*: fewer than four were
  measured. None were measured for bf16, fp8 or fp6 GEMM with large tiles, norms and rotary embedding, nor for attention on MI325X and
  MI350X.
* The clock of bf16 GEMM on gfx950 is anchored to AITER's rate at 8192³: 1597 TFLOP/s on MI355X and 1292 on MI350X, divided by 94 %
  busy matrix cores. That ours comes close to AITER's published rate there is therefore no evidence of its speed.
* Memory bandwidth is anchored to RMS norms that FlyDSL measured on MI355X and MI325X and to BabelStream on MI300X. Tensors
  start in HBM, and the last-level cache is full of data left by earlier launches.
* 8-, 6- and 4-bit GEMMs are compared with AITER's objects (int8 on gfx942, block scales, MXFP4) with their preshuffled weights, of which
  the fastest tile counts. For few rows this includes K split in four parts, excluding the zeroing of the results that the parts are added
  to. They are also compared with the Triton kernels of AITER's wheel, at the tiles that AITER chooses.
* Expert layers are compared with AITER's fmoe objects, of which the fastest tile counts. One such object computes both GEMMs and the gate,
  and adds to the result with atomics. Sorting by expert, quantizing tokens and zeroing the result are included in our times but not in
  theirs.
* Softmax, top-k, routers and expert sorts are compared with the Triton kernels of AITER's wheel, at the tiles that AITER chooses. Cache
  writes, cross entropy, gated activations, quantization and the softmax derivative are compared with nothing here: these tables run none
  of the kernels that others ship for them, neither those in HIP and CK, which would have to be compiled, nor Triton's for quantization.
  Of the 36 comparisons that m8than/amd-kernels counts on MI325X, 27 were published as figures. [Row operations](row_operations.md)
  contains all 27; for the other nine there is no figure to compare with.
* *MFMA* is how busy the matrix cores are while waves are in the main loop.
* *Ours with plain loads*: on gfx950, half of the workgroups of a GEMM load A first and the other half B, so that a cache line comes from
  memory for one half and from L2 for the other. This was chosen by the model alone and has not been measured; the column shows the same
  kernel without it.
"""


def picture(family: Family) -> str:
    shape = re.sub(r"[^a-z0-9]+", "_", family.shape.lower().replace("{n}", "n")).strip("_")
    return f"performance_{family.operation}_{shape}.png"


def page(entries: Mapping[Any, Entry]) -> str:
    parts = [_OPENING, _summary(entries)]
    known = operations.benchmarks()
    for name in TABLES:
        tables = [text for family in FAMILIES if family.table == name for text in _family(family, entries)]
        if tables:
            parts += [f"## {known[name].heading}\n", *tables]
    parts.append(performance_traces.section())
    return "\n".join(parts)


def _rows(family: Family, device: str, entries: Mapping[Any, Entry]) -> dict[tuple[int, str], bench.Row]:
    """By size and library: the rows that were run, and the published figures of any library, with speedups."""
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


def _launching(row: bench.Row) -> float:
    """Microseconds of launch overhead of a row's kernels."""
    each = next(
        entry["value"] for entry in _timing.parameters(row.device) if entry["name"] == "launch_overhead"
    )
    return float(len(row.kernels) * each)


def _publisher(row: bench.Row) -> str:
    return (row.published_source or "").partition("@")[0]


def _correction(rows: Mapping[tuple[int, str], bench.Row], size: int, publisher: str) -> float | None:
    """The divisor of a modelled time at this shape: modelled over measured time of AITER's kernel, both with
    launching, where the same publisher measured it."""
    known = rows.get((size, "aiter"))
    if known is None or known.operation not in _SAME_KERNELS or _publisher(known) != publisher:
        return None
    if known.microseconds is None or known.published_microseconds is None:
        return None
    return (known.microseconds + _launching(known)) / known.published_microseconds


def corrected(rows: Mapping[tuple[int, str], bench.Row], size: int, library: str) -> float | None:
    """How many times as fast ours is as the library's published figure at this size; None if the model's error is not known there."""
    ours, row = rows[size, bench.OURS], rows.get((size, library))
    if row is None or row.published_microseconds is None or ours.microseconds is None:
        return None
    error = _correction(rows, size, _publisher(row))
    if error is None:
        return None
    return row.published_microseconds * error / (ours.microseconds + _launching(ours))


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
    head = [device, f"ours, modelled {unit}", "with launch", "µs", "error", "of limit"] + ["MFMA"] * has_mfma
    head += [f"{_NAMES[library]}, {'published' if known else 'modelled'}" for library, known in columns]
    lines = [head, ["---"] * len(head)]
    for size in sizes:
        ours = rows[size, bench.OURS]
        entry = entries[family.operation, device, ours.shape, bench.OURS]
        rate = _rate(ours, False)
        line = [
            f"N = {size}",
            f"**{rate:,.0f}**",
            f"{rate * ours.microseconds / (ours.microseconds + _launching(ours)):,.0f}",
            f"{ours.microseconds:,.1f}",
            _error(error_of(family.problem(size), device)),
            f"{100 * ours.share_of_limit:.0f} % {ours.limited_by}",
        ]
        if has_mfma:
            line.append(
                "" if entry.main_loop_mfma_busy is None else f"{100 * entry.main_loop_mfma_busy:.0f} %"
            )
        for library, was_published in columns:
            line.append(_beside(rows, size, library, was_published))
        lines.append(line)
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    last = entries[family.operation, device, rows[sizes[-1], bench.OURS].shape, bench.OURS]
    return f"{text}\n\nAt N = {sizes[-1]}: {_code(last.bottleneck)}\n"


def _error(error: ModelError) -> str:
    return error.short if error.percent is None else f"{error.short}, bias {error.bias:+.0f} %"


def _beside(rows: Mapping[tuple[int, str], bench.Row], size: int, library: str, was_published: bool) -> str:
    """Another library's rate, and our speedup over it where it is known."""
    row = rows.get((size, library))
    rate = row and _rate(row, was_published)
    if row is None or rate is None:
        return ""
    if was_published:
        times = corrected(rows, size, library)
        return f"{rate:,.0f}" + (f" (x {times:.2f} corrected)" if times else "")
    return f"{rate:,.0f} (x {row.speedup:.2f})" if row.speedup else ""


def _code(sentence: str) -> str:
    """Quotes kernel names: they have underscores, which Markdown would take for emphasis."""
    return re.sub(r"\b(hipkittens_\w+)", r"`\1`", sentence)


def _summary(entries: Mapping[Any, Entry]) -> str:
    """Geometric means by table and device."""
    lines = [
        "| | device | shapes | over AITER's objects, modelled | over Triton's kernels, modelled "
        "| over the fastest published, corrected at each shape | the same, corrected by the bias of AITER's own table |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in TABLES:
        for device in DEVICES:
            of: dict[str, list[float]] = {"aiter": [], "triton": [], "published": [], "by bias": []}
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
                    known = {row.library: corrected(rows, size, row.library) for row in here}
                    found = {library: times for library, times in known.items() if times is not None}
                    if found:
                        fastest = min(found, key=found.__getitem__)
                        of["published"].append(found[fastest])
                        ours, bias = rows[size, bench.OURS], error_of(family.problem(size), device).bias
                        if bias is not None:
                            times = rows[size, fastest].published_microseconds / (
                                ours.microseconds + _launching(ours)
                            )
                            of["by bias"].append(times * (1 + bias / 100))
            if shapes:
                cells = [_mean(values) for values in of.values()]
                published_here = any(
                    row.published_microseconds
                    for family in FAMILIES
                    if family.table == name
                    for row in _rows(family, device, entries).values()
                )
                if published_here:
                    cells[2:] = [cell or "not calibrated" for cell in cells[2:]]
                lines.append(
                    f"| {name.replace('_', ' ')} | {device} | {shapes} | " + " | ".join(cells) + " |"
                )
    return (
        "## Summary\n\nGeometric means of how many times as fast ours is, with the number of shapes in parentheses. The last column is "
        "corrected by the bias on AITER's own table, which contains times of its kernels at other batch sizes and only on MI300X and MI355X. "
        "The column before it uses HipKittens' figures, which are for calls of AITER's Python package at these shapes.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def _mean(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"x {math.exp(sum(map(math.log, values)) / len(values)):.2f} ({len(values)})"


def draw(family: Family, entries: Mapping[Any, Entry]) -> None:
    """Draws a panel for each device that has a row of ours."""
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
        # The axis shows the size of the family, which for norms is not that of the problem.
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
    elements = ", bfloat16" if operations.benchmarks()[family.operation].bits == 16 else ""
    # The title is next to the legend: a longer line would run under it.
    figure.suptitle(
        f"{family.title}{elements}\nbands: mean error of the model where it is calibrated", fontsize="medium"
    )
    plot.save(figure, str(IMAGES / picture(family)))


def write(entries: Mapping[Any, Entry]) -> None:
    for family in FAMILIES:
        draw(family, entries)
    performance_traces.draw_all()
    PAGE.write_text(page(entries))
