#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the accuracy of our kernels and of PyTorch's own, both against float64, over many shapes, layouts and dtypes.

    python benchmarks/parity.py --against pytorch [--op matmul] [--target gfx950] [--arithmetic exact] [--json]
    python benchmarks/parity.py --op attention --random 500 [--seed 7] [--save-regressions tests/regressions]
    python benchmarks/parity.py --replay tests/regressions/attention-gfx942-12.json

The cases of an operation are a covering array: every two values of any two of its properties occur together in one of them. Each
case runs with the simulator's checks on: results and registers hold NaN until they are written. Outputs and every gradient
are held to the bar of hipkittens/_accuracy.py, in the largest error and in the RMS, both relative to the one baseline that the row
names; integer products must match bitwise. The rows also hold the largest relative error of a row of the result, and the bias: the
mean error in the direction of the reference, over its mean size. Exit code 1 when a case misses the bar.

A case whose only failure is one large error, of less than twice the bar, is computed again from eight draws of values, including
the first; the mean of their largest errors is judged. Its rows record this (`redrawn`) and keep the ratios of the first draw; the
tables count them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import multiprocessing
import random
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import parity_problem
import torch
from parity_operation import ARITHMETIC, TARGETS, Case, Operation, compare_case

from hipkittens import operations
from hipkittens._accuracy import BAR
from hipkittens.operations._record import Parity


def _operation(cases: Parity | str) -> Operation:
    """From an operation's record: its cases, or the name of cases defined in a file next to this one."""
    if isinstance(cases, Parity):
        return parity_problem.operation_of(cases)
    module, _, name = cases.partition(":")
    return getattr(importlib.import_module(module), name)


OPERATIONS = {
    found.name: found
    for operation in operations.every()
    for found in map(_operation, operations.checks(operation).parity)
}


REDRAWS = 8


def run(case: Case) -> list[dict[str, Any]]:
    """The rows of a case; a case that raises is one row with an infinite ratio.

    Each has `redrawn`, and `first_max` and `first_rms`, the ratios of the first draw. All rows of a case are redrawn or none.
    """
    operation = OPERATIONS[case.operation]
    try:
        rows = first = compare_case(operation, case)
        over = [row for row in rows if not ratio(row) <= BAR]
        redrawn = bool(over) and all(row["ratio_rms"] <= BAR and row["ratio_max"] < 2 * BAR for row in over)
        if redrawn:
            rows = compare_case(operation, case, draws=REDRAWS)
        return [
            row | {"redrawn": redrawn, "first_max": before["ratio_max"], "first_rms": before["ratio_rms"]}
            for row, before in zip(rows, first, strict=True)
        ]
    except Exception:
        infinite = float("inf")
        return [
            {
                "op": case.operation, "target": case.target, "case": str(case), "baseline": "none: the case raised",
                "ratio_max": infinite, "ratio_rms": infinite, "redrawn": False, "first_max": infinite, "first_rms": infinite,
                "error": traceback.format_exc(),
            }
        ]  # fmt: skip


def ratio(row: dict[str, Any]) -> float:
    return max(row["ratio_max"], row["ratio_rms"])


def over_the_bar(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if not ratio(row) <= BAR]


def run_all(
    cases: Iterable[Case], save_to: Path | None = None, jobs: int = 1, show_progress: bool = False
) -> list[dict[str, Any]]:
    """The rows of all cases; cases with a row over the bar are saved if a directory is given. jobs: processes that run
    cases in parallel; the rows are the same as those of one process."""
    found: list[dict[str, Any]] = []
    cases = list(cases)  # a generator could only be read once
    with contextlib.ExitStack() as open_pool:
        if jobs > 1:
            pool = open_pool.enter_context(
                multiprocessing.get_context("spawn").Pool(jobs, torch.set_num_threads, (1,))
            )
            results = pool.imap(run, cases)
        else:
            results = map(run, cases)
        for number, (case, rows) in enumerate(zip(cases, results, strict=True)):
            found += rows
            if save_to is not None and over_the_bar(rows):
                print(f"saved {save(case, save_to)}", file=sys.stderr)
            if show_progress:
                print(f"\r{number + 1}/{len(cases)}", end="", file=sys.stderr, flush=True)
    return found


def save(case: Case, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{case.operation}-{case.target}-{case.seed}.json"
    path.write_text(case.to_json())
    return path


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per result, target and baseline: the number of rows, how many of them were drawn again, and the worst ratios.

    worst_first is of first draws alone.
    """
    groups = defaultdict(list)
    for row in rows:
        groups[row["op"], row["target"], row["baseline"]].append(row)
    return [
        {
            "op": op,
            "target": target,
            "baseline": baseline,
            "cases": len(members),
            "redrawn": sum(row["redrawn"] for row in members),
            "worst_max": max(row["ratio_max"] for row in members),
            "worst_rms": max(row["ratio_rms"] for row in members),
            "worst_first": max(max(row["first_max"], row["first_rms"]) for row in members),
        }
        for (op, target, baseline), members in groups.items()
    ]


def page(cases: int, rows: list[dict[str, Any]]) -> str:
    """docs/parity.md."""
    again = [row for row in rows if row["redrawn"]]
    first = max((max(row["first_max"], row["first_rms"]) for row in again), default=0.0)
    lines = [
        "# Accuracy compared with PyTorch", "",
        "Written by `python benchmarks/parity.py --markdown`. All results are from the simulator; none of this has run on a GPU.", "",
        "Every result (outputs and each gradient) is compared with a float64 reference from the same rounded inputs. Its largest error and the",
        f"RMS of its errors may each be at most {BAR:g} times those of *one* baseline, the one named in the table, plus one float32 rounding",
        "(2^-24) of the largest sum of absolute values that contributes to an element, and for float16 its smallest step (2^-24). Results with",
        "the baseline `no error` equal the correctly rounded result, bit for bit. Cases are covering arrays: every pair of values of any two",
        "properties (shape, dtype, layout, strides, options, kind of values) occurs in at least one case. Results of fewer than 128 elements",
        "are computed from up to 16 draws of values and judged as one. Sums are in the host's order; float32 products, and everything under",
        "`-m slow`, use the order of the matrix cores (`exact`).", "",
        f"{cases:,} cases, {len(rows):,} results; the worst ratio is {max(map(ratio, rows)):.2f}. {len(again)} results, from cases that exceeded",
        f"the limit by one large error of less than twice the limit, were judged by the mean of the largest errors of {REDRAWS} draws of values;",
        f"the worst ratio of a first draw was {first:.2f}.", "",
        "| result | target | results | worst, largest error | worst, RMS | redrawn | worst first draw | baseline |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]  # fmt: skip
    lines += [
        f"| `{row['op']}` | {row['target']} | {row['cases']} | {row['worst_max']:.2f} | {row['worst_rms']:.2f} | {row['redrawn']} | "
        f"{row['worst_first']:.2f} | {row['baseline']} |"
        for row in summary(rows)
    ]
    return "\n".join(lines) + "\n"


def chosen_cases(arguments: argparse.Namespace) -> list[Case]:
    if arguments.replay:
        return [Case.from_json(path.read_text()) for path in arguments.replay]
    targets = (arguments.target,) if arguments.target else TARGETS
    operations = [OPERATIONS[name] for name in (arguments.op or OPERATIONS)]
    if arguments.random:
        seed = random.randrange(1 << 30) if arguments.seed is None else arguments.seed
        print(f"seed {seed}", file=sys.stderr)
        drawn = (operation.random_cases(arguments.random, seed, targets) for operation in operations)
    else:
        drawn = (operation.cases(targets) for operation in operations)
    return [dataclasses.replace(case, arithmetic=arguments.arithmetic) for cases in drawn for case in cases]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", choices=["pytorch", "aiter"], default="pytorch")
    parser.add_argument("--op", choices=OPERATIONS, action="append", help="default: all of them")
    parser.add_argument("--target", choices=TARGETS, help="default: both")
    parser.add_argument(
        "--arithmetic", choices=ARITHMETIC, default="fast", help="of the simulated matrix cores"
    )
    parser.add_argument(
        "--random", type=int, metavar="COUNT", help="random cases instead of the covering array"
    )
    parser.add_argument("--seed", type=int, help="of the random cases; default: any, printed")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="saved cases only")
    parser.add_argument(
        "--save-regressions", type=Path, metavar="DIRECTORY", help="keep failing cases as JSON"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="run so many cases at a time, default: %(default)s"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true", help="the page docs/parity.md")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs: {arguments.jobs}; allowed: 1 and more")
    if arguments.against == "aiter":
        if arguments.jobs > 1:
            parser.error("--jobs: cases beside AITER's objects run one at a time; leave it out")
        import parity_aiter  # next to this file; it needs AITER's wheel

        return parity_aiter.main(arguments)
    cases = chosen_cases(arguments)
    rows = run_all(cases, arguments.save_regressions, arguments.jobs, sys.stderr.isatty())
    worst, worst_first = max(map(ratio, rows)), max(max(row["first_max"], row["first_rms"]) for row in rows)
    redrawn = sum(row["redrawn"] for row in rows)
    if arguments.markdown:
        print(page(len(cases), rows), end="")
    elif arguments.json:
        found = {
            "cases": len(cases), "worst": worst, "redrawn": redrawn, "results": len(rows),
            "worst_first": worst_first, "summary": summary(rows), "rows": rows,
        }  # fmt: skip
        json.dump(found, sys.stdout, indent=1)
        print()
    else:
        for row in sorted(rows, key=ratio, reverse=True)[:10]:
            again = f"  (first draw {row['first_max']:.2f})" if row["redrawn"] else ""
            print(
                f"{row['op']:<18} {row['target']}  max {row['ratio_max']:5.2f}  rms {row['ratio_rms']:5.2f}{again}  {row['case']}"
            )
            print(row.get("error", ""), end="")
        for group in summary(rows):
            print(
                f"{group['op']:<24} {group['target']} {group['cases']:5d} results  worst max {group['worst_max']:5.2f}  "
                f"rms {group['worst_rms']:5.2f}  {group['redrawn']:3d} redrawn, worst first draw "
                f"{group['worst_first']:5.2f}  beside {group['baseline']}"
            )
        print(
            f"{len(cases)} cases, {len(rows)} results; worst ratio of our error to the baseline's: {worst:.2f} (bar {BAR}); "
            f"{redrawn} results drawn again, the worst first draw was {worst_first:.2f}"
        )
    return int(not worst <= BAR)


if __name__ == "__main__":
    raise SystemExit(main())
