#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Accuracy of our kernels beside PyTorch's own, both against float64, over many shapes, layouts and dtypes.

    python benchmarks/parity.py --against pytorch [--op matmul] [--target gfx950] [--json]
    python benchmarks/parity.py --op attention --random 500 [--seed 7] [--save-regressions tests/regressions]
    python benchmarks/parity.py --replay tests/regressions/attention-gfx942-12.json

The cases of an operation are a covering array: every two values of any two of its properties meet in one of them. Each
runs with the simulator's checks on: results and registers hold NaN until they are written. Outputs and every gradient
are held to the bar of hipkittens/_accuracy.py, in the largest error and in the RMS; products of integers to the bit.
The rows also hold the largest relative error of a row of the result, and the bias: the mean error in the direction of
the reference, over its mean size. Exit code 1 when a case misses the bar.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import parity_problem
from parity_operation import TARGETS, Case, Operation, compare_case

from hipkittens import operations
from hipkittens._accuracy import BAR
from hipkittens.operations._record import Parity


def _operation(cases: Parity | str) -> Operation:
    """From an operation's record: its cases, or the name of those that are written beside this file."""
    if isinstance(cases, Parity):
        return parity_problem.operation_of(cases)
    module, _, name = cases.partition(":")
    return getattr(importlib.import_module(module), name)


OPERATIONS = {
    found.name: found
    for operation in operations.every()
    for found in map(_operation, operations.checks(operation).parity)
}


def run(case: Case) -> list[dict[str, Any]]:
    """The rows of a case; a case that raises is one row with an infinite ratio.

    The largest error of one draw of values can be one row's: where nothing else is over the bar, by less than twice as much,
    eight draws are compared as one.
    """
    operation = OPERATIONS[case.operation]
    try:
        rows = compare_case(operation, case)
        over = [row for row in rows if not ratio(row) <= BAR]
        if over and all(row["ratio_rms"] <= BAR and row["ratio_max"] < 2 * BAR for row in over):
            rows = compare_case(operation, case, draws=8)
        return rows
    except Exception:
        return [
            {
                "op": case.operation, "target": case.target, "case": str(case), "ratio_max": float("inf"),
                "ratio_rms": float("inf"), "ratio_to_better": float("inf"), "error": traceback.format_exc(),
            }
        ]  # fmt: skip


def ratio(row: dict[str, Any]) -> float:
    return max(row["ratio_max"], row["ratio_rms"])


def misses(cases: Iterable[Case], save_to: Path | None = None) -> list[dict[str, Any]]:
    """The rows over the bar; their cases are saved when there is a directory for them."""
    found = []
    for case in cases:
        rows = [row for row in run(case) if not ratio(row) <= BAR]
        if rows and save_to is not None:
            save(case, save_to)
        found += rows
    return found


def save(case: Case, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{case.operation}-{case.target}-{case.seed}.json"
    path.write_text(case.to_json())
    return path


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per result and target: how many, the worst ratio, and whose errors they were."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["op"], row["target"]].append(row)
    return [
        {
            "op": op,
            "target": target,
            "cases": len(members),
            "worst_max": max(row["ratio_max"] for row in members),
            "worst_rms": max(row["ratio_rms"] for row in members),
            "worst_to_better": max(row["ratio_to_better"] for row in members),
        }
        for (op, target), members in groups.items()
    ]


def chosen_cases(arguments: argparse.Namespace) -> list[Case]:
    if arguments.replay:
        return [Case.from_json(path.read_text()) for path in arguments.replay]
    targets = (arguments.target,) if arguments.target else TARGETS
    operations = [OPERATIONS[name] for name in (arguments.op or OPERATIONS)]
    if not arguments.random:
        return [case for operation in operations for case in operation.cases(targets)]
    seed = random.randrange(1 << 30) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", file=sys.stderr)
    return [
        case for operation in operations for case in operation.random_cases(arguments.random, seed, targets)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", choices=["pytorch", "aiter"], default="pytorch")
    parser.add_argument("--op", choices=OPERATIONS, action="append", help="default: all of them")
    parser.add_argument("--target", choices=TARGETS, help="default: both")
    parser.add_argument(
        "--random", type=int, metavar="COUNT", help="random cases instead of the covering array"
    )
    parser.add_argument("--seed", type=int, help="of the random cases; default: any, printed")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="saved cases only")
    parser.add_argument(
        "--save-regressions", type=Path, metavar="DIRECTORY", help="keep failing cases as JSON"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.against == "aiter":
        import parity_aiter  # beside this file; it needs AITER's wheel

        return parity_aiter.main(arguments)
    cases = chosen_cases(arguments)
    rows: list[dict[str, Any]] = []
    for number, case in enumerate(cases):
        found = run(case)
        rows += found
        if arguments.save_regressions and any(not ratio(row) <= BAR for row in found):
            print(f"saved {save(case, arguments.save_regressions)}", file=sys.stderr)
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{len(cases)}", end="", file=sys.stderr, flush=True)
    worst = max(map(ratio, rows))
    if arguments.json:
        json.dump(
            {"cases": len(cases), "worst": worst, "summary": summary(rows), "rows": rows},
            sys.stdout,
            indent=1,
        )
        print()
    else:
        for row in sorted(rows, key=ratio, reverse=True)[:10]:
            print(
                f"{row['op']:<18} {row['target']}  max {row['ratio_max']:5.2f}  rms {row['ratio_rms']:5.2f}  {row['case']}"
            )
            print(row.get("error", ""), end="")
        for group in summary(rows):
            print(
                f"{group['op']:<24} {group['target']} {group['cases']:5d} cases  worst max {group['worst_max']:5.2f}  "
                f"rms {group['worst_rms']:5.2f}  (to the better order {group['worst_to_better']:.2f})"
            )
        print(
            f"{len(cases)} cases, {len(rows)} results; worst ratio of our error to PyTorch's: {worst:.2f} (bar {BAR})"
        )
    return int(not worst <= BAR)


if __name__ == "__main__":
    raise SystemExit(main())
