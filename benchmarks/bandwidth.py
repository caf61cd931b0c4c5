#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes docs/bandwidth.md: the modelled share of the achievable memory bandwidth that memory-bound operations reach.

    python benchmarks/bandwidth.py                            # all, about 40 minutes on two cores
    python benchmarks/bandwidth.py --only rotary --devices MI300X --json

The rows are not selected by hand: every operation whose record counts bytes and no floating-point operations, at every one of
its default shapes (the shapes of `hipkittens bench OPERATION`) that moves 64 MB or more.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hipkittens import _timing
from hipkittens._progress import progress_bar
from hipkittens.profiling.bench import OURS, row_of
from hipkittens.profiling.problems import SYNTAX, Problem, parse_shapes

PAGE = Path(__file__).resolve().parent.parent / "docs" / "bandwidth.md"
DEVICES = ("MI300X", "MI325X", "MI355X")
LEAST = 64e6  # bytes
BAR = 0.85


@dataclass(frozen=True)
class Share:
    """microseconds  modelled, without the launch overhead
    share         of the achievable bandwidth, if every operand and result is moved once
    """

    operation: str
    shape: str
    device: str
    megabytes: float
    microseconds: float
    share: float


def achievable(device: str) -> float:
    """Bytes/ns that a memory benchmark achieved, and its source: the parameter of the model."""
    return next(row["value"] for row in _timing.parameters(device) if row["name"] == "hbm_bandwidth")


def operations() -> list[str]:
    return [name for name, syntax in SYNTAX.items() if syntax.flops is None]


def problems(names: Iterable[str]) -> list[Problem]:
    return [
        problem
        for name in names
        for problem in parse_shapes(name, SYNTAX[name].shapes)
        if problem.bytes >= LEAST
    ]


def share(problem: Problem, device: str) -> Share:
    row = row_of(problem, device, OURS, on_gpu=False)
    assert row.microseconds is not None
    reached = problem.bytes / (row.microseconds * 1e3) / achievable(device)
    return Share(problem.operation, problem.shape, device, problem.bytes / 1e6, row.microseconds, reached)


def shares(items: list[tuple[Problem, str]], jobs: int) -> list[Share]:
    """Runs the items, the largest first, so that none of them is left running alone at the end."""
    order = sorted(range(len(items)), key=lambda index: -items[index][0].bytes)
    # Not forked: the simulator has threads.
    context = multiprocessing.get_context("spawn")
    with progress_bar() as bar, concurrent.futures.ProcessPoolExecutor(jobs, context) as pool:
        running = {pool.submit(share, *items[index]): index for index in order}
        done = bar.track(concurrent.futures.as_completed(running), total=len(running), description="shares")
        results = {running[future]: future.result() for future in done}
    return [results[index] for index in range(len(items))]


def page(results: list[Share]) -> str:
    by_problem: dict[tuple[str, str], dict[str, Share]] = {}
    for each in results:
        by_problem.setdefault((each.operation, each.shape), {})[each.device] = each
    below = [each for each in results if each.share < BAR]
    above = [each for each in results if each.share > 1.0]
    named = {each.operation for each in results}
    absent = [name for name in operations() if name not in named]
    bandwidths = ", ".join(f"{achievable(device) / 1e3:.2f} TB/s on a {device}" for device in DEVICES)
    source = next(row["source"] for row in _timing.parameters(DEVICES[0]) if row["name"] == "hbm_bandwidth")
    lines = [
        "# Shares of the achievable memory bandwidth",
        "",
        "`python benchmarks/bandwidth.py` writes this page. Times are from the [cycle model](timing_model.md), without launch overhead;",
        "none of our kernels has run on a GPU. Bytes count every operand and result once, in bfloat16 unless the operation's",
        f"name states otherwise. *Achievable* is the model's `hbm_bandwidth`, {bandwidths}",
        f"({source}); hits in the last-level cache are not assumed, since launches start with none of their operands in it.",
        "A share states how much of the model's own limit a kernel reaches, not how close the model is to silicon.",
        "",
        f"The {len(by_problem)} problems are all default shapes that move {LEAST / 1e6:.0f} MB or more, for all operations measured",
        f"in bytes. Of the {len(results)} shares {len(below)} are below {BAR:.0%}, and {len(above)} above 100 %. These operations have no shape of that size:",
        f"{', '.join(f'`{name}`' for name in absent)}.",
        "",
        f"| operation | shape | MB | {' | '.join(f'{device}, us | share' for device in DEVICES)} |",
        f"|---|---|---|{'---|---|' * len(DEVICES)}",
    ]
    for (operation, shape), row in by_problem.items():
        cells = [
            f"{row[device].microseconds:.1f} | {row[device].share:.1%}" if device in row else " | "
            for device in DEVICES
        ]
        megabytes = next(iter(row.values())).megabytes
        lines.append(f"| {operation} | {shape} | {megabytes:.0f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="operations, with commas between; the page is not written")
    parser.add_argument(
        "--devices", default=",".join(DEVICES), help="with commas between; the page has all of them"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each core)"
    )
    parser.add_argument("--json", action="store_true", help="print the rows in place of writing the page")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else operations()
    devices = arguments.devices.split(",")
    for name in names:
        if name not in operations():
            parser.error(
                f"--only {name}: no operation that memory limits; there are {', '.join(operations())}"
            )
    for device in devices:
        if device not in _timing.DEVICES:
            parser.error(f"--devices {device}: allowed: {', '.join(_timing.DEVICES)}")
    results = shares([(problem, device) for problem in problems(names) for device in devices], arguments.jobs)
    if arguments.json or arguments.only or set(devices) != set(DEVICES):
        print(json.dumps([asdict(each) for each in results], indent=1))
    else:
        PAGE.write_text(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
