# SPDX-License-Identifier: MIT
"""`hipkittens bench`: ours and other libraries at several shapes, as a table, JSON, CSV and a plot."""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import _backend
from .._output_file import require_writable
from .._progress import progress_bar
from .._whole_table import print_whole
from . import options, plot, published
from .bench import OURS, Row, beside_ours, published_row, row_of
from .measure import device_of
from .peers import NAMES
from .problems import SYNTAX, Problem

_MODELLED = (
    "modelled: by the cycle model, never on a GPU (docs/timing_model.md); launch overhead not included"
)
_MEASURED = "measured: median of repeated calls on this GPU, caches overwritten before each"
_PUBLISHED = "published: by others, on real GPUs; sources in --json and --csv"
_SPEEDUP = "ours is: how many times as fast as that row; for a published row, {kind} compared with measured by others"
# --compare, in addition to names of libraries
_SETS = {
    "published": "figures that others published for the same shape and device (default)",
    "all": "these and every library that can be run",
    "none": "ours only",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, several_shapes=True)
    sets = "; ".join(f"{name}: {meaning}" for name, meaning in _SETS.items())
    parser.add_argument(
        "--compare",
        default="published",
        metavar="LIBRARIES",
        help=f"some of {', '.join(_names())}, comma-separated; or one of {sets}",
    )
    parser.add_argument(
        "--rate",
        choices=tuple(plot.RATES),
        help="rate to show (default: TFLOP/s, or GB/s for memory-bound operations)",
    )
    parser.add_argument("--model", action="store_true", help="use the cycle model even if there is a GPU")
    parser.add_argument("--csv", metavar="FILE", help="write the rows as CSV to FILE (-: standard output)")
    parser.add_argument(
        "--plot", metavar="FILE", help="plot one line per library over the sizes (needs matplotlib)"
    )
    parser.add_argument(
        "--fit",
        action="store_true",
        help="in a checkout, update the costs used by the operation's plan: measured on this GPU, or modelled without one",
    )


def _names() -> list[str]:
    """Libraries that can be run here, followed by those with published figures only."""
    return [*NAMES, *(name for name in published.libraries() if name not in NAMES)]


def _libraries(text: str) -> tuple[list[str], bool]:
    """The libraries to run, from --compare, and whether those with published figures only are appended."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if len(names) == 1 and names[0] in _SETS:
        return list(NAMES) if names == ["all"] else [], names != ["none"]
    for name in names:
        if name not in _names():
            allowed = f"some of {', '.join(_names())}; or one of {', '.join(_SETS)}"
            raise ValueError(f"--compare names {name!r}; allowed: {allowed}")
    return names, False


def _measured_device(arguments: argparse.Namespace) -> str:
    import torch

    name = torch.cuda.get_device_properties(0).name
    here = device_of(name)
    if here is None:
        raise ValueError(f"this GPU is {name!r}, of which there are no limits; use --model")
    if (arguments.device or arguments.arch) and options.device(arguments) != here:
        raise ValueError(f"this GPU is an {here}; to model an {options.device(arguments)}, add --model")
    return here


def _fit(arguments: argparse.Namespace) -> int:
    """Runs the program of benchmarks/ that updates an operation's cost model, which a build includes in its launch plan."""
    if arguments.operation not in SYNTAX:
        raise ValueError(f"OP is {arguments.operation!r}; allowed: {', '.join(SYNTAX)}")
    name = SYNTAX[arguments.operation].fit
    if not name:
        allowed = ", ".join(each for each, benchmark in SYNTAX.items() if benchmark.fit)
        raise ValueError(f"--fit: {arguments.operation} has no table of costs; allowed: {allowed}")
    program = Path(__file__).resolve().parents[2] / "benchmarks" / f"{name}.py"
    beside = {"--shapes": arguments.shapes, "--device": arguments.device, "--rate": arguments.rate}
    beside |= {"--csv": arguments.csv, "--plot": arguments.plot, "--json": arguments.json}
    if said := [option for option, value in beside.items() if value]:
        raise ValueError(
            f"--fit chooses what it runs; leave {', '.join(said)} out (allowed: --arch, --model)"
        )
    if not program.is_file():
        raise ValueError("--fit: the table is part of the sources, and this is no checkout of them")
    command = [sys.executable, str(program), *(["--model"] if arguments.model else [])]
    return subprocess.run([*command, *(["--target", arguments.arch] if arguments.arch else [])]).returncode


def main(arguments: argparse.Namespace) -> int:
    if arguments.fit:
        return _fit(arguments)
    problems, (run, more) = options.problems(arguments), _libraries(arguments.compare)
    rate = _rate(arguments.rate, problems[0])
    if arguments.plot:
        plot.require(arguments.plot, problems)
        require_writable("--plot", arguments.plot)
    if arguments.json and arguments.csv == "-":
        raise ValueError("--json and --csv - would both be written to standard output; name a file for one")
    if arguments.csv and arguments.csv != "-":
        require_writable("--csv", arguments.csv)
    on_gpu = _backend.hip_device_count() > 0 and not arguments.model
    device = _measured_device(arguments) if on_gpu else options.device(arguments)
    rows = []
    with progress_bar() as bar:
        task = bar.add_task("", total=len(problems) * (1 + len(run)))
        for problem in problems:
            for library in (OURS, *run):
                bar.update(task, description=f"{library} {problem.shape}")
                rows.append(row_of(problem, device, library, on_gpu))
                bar.advance(task)
            others = published.libraries_at(problem, device) if more else []
            rows += [published_row(problem, device, library) for library in others if library not in run]
    rows = beside_ours(rows)
    if arguments.plot:
        plot.write(rows, arguments.plot, rate)
    if arguments.csv:
        _write_csv(rows, arguments.csv)
    if arguments.json:
        json.dump({"legend": _legend(rows), "rows": [row.to_dict() for row in rows]}, sys.stdout, indent=2)
        print()
    elif arguments.csv != "-":
        _print_table(rows, rate)
    return int(any(row.kind == "none" and row.library == OURS for row in rows))


def _rate(asked: str | None, problem: Problem) -> str:
    if asked == "TFLOP/s" and problem.flops is None:
        raise ValueError(f"--rate is TFLOP/s, and of {problem.operation} bytes are counted; allowed: GB/s")
    return asked or ("GB/s" if problem.flops is None else "TFLOP/s")


def _legend(rows: list[Row]) -> list[str]:
    kinds = {row.kind for row in rows}
    said = [text for kind, text in (("modelled", _MODELLED), ("measured", _MEASURED)) if kind in kinds]
    said += [f"error: {text}" for text in dict.fromkeys(row.error_of for row in rows) if text]
    if any(row.published_microseconds is not None for row in rows):
        said.append(_PUBLISHED)
    if any(row.speedup or row.speedup_over_published for row in rows):
        said.append(_SPEEDUP.format(kind="measured here" if "measured" in kinds else "modelled"))
    return said


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


def _print_table(rows: list[Row], rate: str) -> None:
    measured = any(row.kind == "measured" for row in rows)
    table = Table(title=f"{rows[0].operation}, bfloat16, {rows[0].device}", box=None, pad_edge=False)
    for heading in ("shape, library", ""):
        table.add_column(heading, no_wrap=True)
    second = ("10 % - 90 %",) if measured else ("error", "cycles")
    for heading in ("us", *second, rate, "of limit", "ours is"):
        table.add_column(heading, justify="right", no_wrap=True)
    for shape in dict.fromkeys(row.shape for row in rows):
        table.add_row(shape)
        for row in rows:
            if row.shape == shape:
                for cells in _cells(row, rate, measured):
                    table.add_row(f"  {row.library}", *cells)
    print_whole(table)
    console = Console()
    for line in (*_legend(rows), *_reasons(rows)):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _cells(row: Row, rate: str, measured: bool) -> Iterable[tuple[str, ...]]:
    """The table line of what was run, and that of what was published."""
    run, published_rate = plot.RATES[rate]
    if row.microseconds is not None:
        share = "" if row.share_of_limit is None else f"{100 * row.share_of_limit:.1f} % {row.limited_by}"
        spread = "" if row.low is None else f"{row.low:,.2f} - {row.high:,.2f}"
        error = (
            f"±{row.error_percent:.0f} %"
            if row.error_percent is not None
            else "not calibrated"
            if row.error_of
            else ""
        )
        yield (
            row.kind,
            _number(row.microseconds, ",.2f"),
            *((spread,) if measured else (error, _number(row.cycles, ",.0f"))),
            _number(getattr(row, run), ",.1f"),
            share,
            _number(row.speedup, ".2f"),
        )
    if row.published_microseconds is not None:
        yield (
            "published",
            _number(row.published_microseconds, ",.2f"),
            *(("",) if measured else ("", "")),
            _number(getattr(row, published_rate), ",.1f"),
            "",
            _number(row.speedup_over_published, ".2f"),
        )
    if row.kind == "none":
        yield ("not run",)


def _reasons(rows: list[Row]) -> Iterable[str]:
    """Why rows that could have been run were not."""
    said = (f"{row.library}: {row.note}" for row in rows if row.note and row.microseconds is None)
    return dict.fromkeys(text for text in said if text.split(":")[0] in (OURS, *NAMES))
