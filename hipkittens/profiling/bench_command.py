# SPDX-License-Identifier: MIT
"""`hipkittens bench`: ours and other libraries at several shapes, as a table, JSON, CSV and a plot."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import _backend
from .._progress import progress_bar
from . import options, plot
from .bench import OURS, Row, row_of
from .measure import device_of
from .peers import NAMES

_MODELLED = (
    "modelled: by the cycle model, never on a GPU (docs/timing_model.md); launch overhead not included"
)
_MEASURED = "measured: median of repeated calls on this GPU, caches overwritten before each"
_PUBLISHED = "published: by others, on real GPUs; sources in --json and --csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, several_shapes=True)
    parser.add_argument(
        "--compare", default="", metavar="LIBRARIES", help=f"some of {', '.join(NAMES)}, with commas between"
    )
    parser.add_argument("--model", action="store_true", help="use the cycle model although there is a GPU")
    parser.add_argument("--csv", metavar="FILE", help="write the rows there (-: standard output)")
    parser.add_argument(
        "--plot", metavar="FILE", help="a line for each library over the sizes (needs matplotlib)"
    )


def _libraries(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in NAMES:
            raise ValueError(f"--compare names {name!r}; allowed: some of {', '.join(NAMES)}")
    return [OURS, *dict.fromkeys(names)]


def _measured_device(arguments: argparse.Namespace) -> str:
    import torch

    name = torch.cuda.get_device_properties(0).name
    here = device_of(name)
    if here is None:
        raise ValueError(f"this GPU is {name!r}, of which there are no limits; use --model")
    if (arguments.device or arguments.arch) and options.device(arguments) != here:
        raise ValueError(f"this GPU is an {here}; to model an {options.device(arguments)}, add --model")
    return here


def main(arguments: argparse.Namespace) -> int:
    problems, libraries = options.problems(arguments), _libraries(arguments.compare)
    if arguments.plot:
        plot.require(arguments.plot)
    if arguments.json and arguments.csv == "-":
        raise ValueError("--json and --csv - would both be written to standard output; name a file for one")
    on_gpu = _backend.hip_device_count() > 0 and not arguments.model
    device = _measured_device(arguments) if on_gpu else options.device(arguments)
    rows = []
    with progress_bar() as bar:
        task = bar.add_task("", total=len(problems) * len(libraries))
        for problem in problems:
            for library in libraries:
                bar.update(task, description=f"{library} {problem.shape}")
                rows.append(row_of(problem, device, library, on_gpu))
                bar.advance(task)
    if arguments.csv:
        _write_csv(rows, arguments.csv)
    if arguments.plot:
        plot.write(rows, arguments.plot)
    if arguments.json:
        legend = [_MEASURED if on_gpu else _MODELLED, _PUBLISHED]
        json.dump({"legend": legend, "rows": [row.to_dict() for row in rows]}, sys.stdout, indent=2)
        print()
    elif arguments.csv != "-":
        _print_table(rows, on_gpu)
    return int(any(row.kind == "none" and row.library == OURS for row in rows))


def _write_csv(rows: list[Row], path: str) -> None:
    names = [field.name for field in fields(Row)]

    def write(file: Any) -> None:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            values = row.to_dict() | {"kernels": " ".join(row.kernels)}
            writer.writerow(["" if values[name] is None else values[name] for name in names])

    if path == "-":
        write(sys.stdout)
        return
    with open(path, "w", newline="") as file:
        write(file)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _print_table(rows: list[Row], on_gpu: bool) -> None:
    first = rows[0]
    counts_operations = first.tflops is not None or first.published_tflops is not None
    table = Table(title=f"{first.operation}, bfloat16, {first.device}", box=None, pad_edge=False)
    for heading in ("shape", "library", ""):
        table.add_column(heading, no_wrap=True)
    rate = "TFLOP/s" if counts_operations else "GB/s"
    for heading in ("cycles", "us", rate, "of limit", "published us", f"published {rate}"):
        table.add_column(heading, justify="right", no_wrap=True)
    bytes_of = {row.shape: row.gbps * row.microseconds for row in rows if row.gbps and row.microseconds}
    notes = []
    for row in rows:
        reached = row.tflops if counts_operations else row.gbps
        published = row.published_tflops
        if not counts_operations and row.published_microseconds and row.shape in bytes_of:
            published = bytes_of[row.shape] / row.published_microseconds
        share = "" if row.share_of_limit is None else f"{100 * row.share_of_limit:.1f} % {row.limited_by}"
        spread = "" if row.low is None else f" ({row.low:.2f} - {row.high:.2f})"
        table.add_row(
            row.shape,
            row.library,
            "not run" if row.kind == "none" else row.kind,
            _number(row.cycles, ",.0f"),
            _number(row.microseconds, ",.2f") + spread,
            _number(reached, ",.1f"),
            share,
            _number(row.published_microseconds, ",.2f"),
            _number(published, ",.1f"),
        )
        if row.kind == "none" and (note := f"{row.library}: {row.note}") not in notes:
            notes.append(note)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for line in (_MEASURED if on_gpu else _MODELLED, _PUBLISHED, *notes):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
