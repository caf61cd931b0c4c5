#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes docs/performance.md, its plots and docs/performance.csv: ours and other libraries at upstream's shapes, modelled.

    python benchmarks/performance_tables.py --jobs 28                    # all that is out of date, in 28 processes
    python benchmarks/performance_tables.py --libraries hipkittens       # ours only; the others are aiter, triton and plain_loads
    python benchmarks/performance_tables.py --only gemm --devices MI355X # only rows of these tables and devices
    python benchmarks/performance_tables.py --page                       # the page and plots again, from the existing rows
    python benchmarks/performance_tables.py --page --traces              # and the two traces

A row is kept as long as its inputs are unchanged: what it launches (code objects, grids, arguments), the model's parameters and
code, and the peer's kernels. A second run therefore only repeats what changed. --check prints the rows that are out of date. With --jobs,
rows run in that many processes, the largest first.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import performance_page
import performance_rows
import performance_traces

from hipkittens._progress import progress_bar
from hipkittens.operations._tables import DEVICES
from hipkittens.profiling import bench
from hipkittens.profiling.problems import Problem

LIBRARIES = (bench.OURS, "aiter", "triton", performance_rows.PLAIN_LOADS)
Item = tuple[Problem, str, str]  # problem, device and library


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--only",
        default=",".join(performance_rows.TABLES),
        help=f"some of {', '.join(performance_rows.TABLES)}",
    )
    parser.add_argument(
        "--devices",
        default=",".join(DEVICES),
        help=f"some of {', '.join(DEVICES)}",
    )
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="default: %(default)s")
    parser.add_argument("--largest", type=int, default=1 << 30, metavar="N", help="skip sizes above N")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start no row after this many seconds"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="number of rows to run in parallel, default: %(default)s",
    )
    parser.add_argument("--again", action="store_true", help="also run rows that are up to date")
    parser.add_argument("--page", action="store_true", help="run nothing; write rows, page and plots")
    parser.add_argument("--traces", action="store_true", help="also model the two traces of the page again")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing, list which of the chosen rows are out of date, and fail if any is",
    )
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs: {arguments.jobs}; allowed: 1 and more")
    chosen = {}
    for name, allowed in (
        ("only", performance_rows.TABLES),
        ("devices", DEVICES),
        ("libraries", LIBRARIES),
    ):
        chosen[name] = getattr(arguments, name).split(",")
        if unknown := set(chosen[name]) - set(allowed):
            parser.error(f"--{name}: {', '.join(sorted(unknown))}; allowed: {', '.join(allowed)}")
    entries = performance_rows.read()
    if arguments.check:
        rows = _chosen_rows(chosen, arguments.largest)
        old = performance_rows.out_of_date(entry for key, entry in entries.items() if key in rows)
        for entry in old:
            print("out of date:", *entry.key)
        sys.exit(bool(old))
    if not arguments.page:
        run_all(entries, chosen, arguments.largest, arguments.seconds, arguments.again, arguments.jobs)
    performance_rows.write(entries)
    if arguments.traces:
        performance_traces.make_all()
    performance_page.write(entries)


def _chosen_rows(
    chosen: Mapping[str, list[str]], largest: int
) -> dict[tuple[str, str, str, str], tuple[Any, str, str]]:
    """Problem, device and library of each row of the chosen tables, devices and libraries up to a size, by Entry.key."""
    rows = (
        (family.problem(size), device, library)
        for family in performance_rows.FAMILIES
        if family.table in chosen["only"]
        for device in DEVICES
        if device in chosen["devices"]
        for size, library in family.wanted(device)
        if library in chosen["libraries"] and size <= largest
    )
    return {(row[0].operation, row[1], row[0].shape, row[2]): row for row in rows}


def run_all(
    entries: dict[Any, performance_rows.Entry],
    chosen: Mapping[str, list[str]],
    largest: int,
    seconds: float,
    again: bool = False,
    jobs: int = 1,
) -> None:
    """Runs the selected rows that are out of date. In one process small problems run first, so that `seconds` cuts off the longest.
    In several processes the largest run first, so that none of them is left running alone at the end."""
    fresh = (
        set()
        if again
        else entries.keys() - {entry.key for entry in performance_rows.out_of_date(entries.values())}
    )
    todo = [row for key, row in _chosen_rows(chosen, largest).items() if key not in fresh]
    todo.sort(key=lambda item: item[0].flops or item[0].bytes, reverse=jobs > 1)
    with progress_bar() as bar:
        task = bar.add_task("", total=len(todo))
        for (problem, device, library), entry in _run_each(todo, seconds, jobs):
            bar.update(task, description=f"{device} {library} {problem.operation} {problem.shape}")
            if entry is not None:
                entries[entry.key] = entry
                performance_rows.write(entries)
            bar.advance(task)
    left = len(todo) - bar.tasks[0].completed
    if left:
        print(f"{left:.0f} rows not reached within --seconds {seconds:g}", file=sys.stderr)


def _run_each(
    todo: Sequence[Item], seconds: float, jobs: int
) -> Iterator[tuple[Item, performance_rows.Entry | None]]:
    """Yields each row when it is complete; none is started after this many seconds."""
    begin = time.monotonic()
    if jobs == 1:
        for item in todo:
            if time.monotonic() - begin > seconds:
                return
            yield item, performance_rows.run(*item)
        return
    # Not forked: the simulator has threads.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, context) as pool:
        waiting, running = list(reversed(todo)), {}
        while waiting or running:
            while waiting and len(running) < jobs and time.monotonic() - begin <= seconds:
                item = waiting.pop()
                running[pool.submit(performance_rows.run, *item)] = item
            if not running:
                return
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()


if __name__ == "__main__":
    main()
