# SPDX-License-Identifier: MIT
"""Runs AITER's objects, prints what came out, and makes the table of docs/foreign_kernels.md.

    python -m tests.oracles.aiter.survey [--filter TEXT] [--sample] [--every N] [--results FILE]
    python -m tests.oracles.aiter.survey --write docs/foreign_kernels.md --results FILE

Results are added to FILE, one JSON object per line; --write runs nothing. Exit code 1 if an object misses its bar.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
import time

from tests.oracles.aiter import wheel
from tests.oracles.aiter.catalog import Case, cases

BEGIN, END = "<!-- table of tests/oracles/aiter/survey.py -->", "<!-- end of table -->"


def run(case: Case) -> dict:
    row = {"case": str(case), "family": case.family, "target": case.target, "name": case.name}
    row |= {"errors": {}, "over_read": False, "problem": ""}
    try:
        outcome = case.action()
        row |= {"errors": dict(outcome.errors), "over_read": bool(outcome.run.over_read)}
        outcome.check()
    except Exception as error:  # one object's trouble shall not hide the others' results
        row["problem"] = f"{type(error).__name__}: {error}".split("\n")[0]
    return row


def table(rows: list[dict]) -> str:
    groups = collections.defaultdict(dict)
    current = {str(case) for case in cases()}
    for row in rows:  # of runs of the same case the last one counts
        if row["case"] not in current:
            continue
        groups[row["family"], row["target"]][row["case"]] = row
    lines = [
        "| family | target | files | run | right | launches | worst error | files that load past their tensors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (family, target), group in sorted(groups.items()):
        known = {case.name for case in cases() if (case.family, case.target) == (family, target)}
        shipped = {name for name in wheel.objects() if name.startswith(f"{target}/{family}/")}
        files = {row["name"] for row in group.values()}
        wrong = {row["name"] for row in group.values() if row["problem"]}
        worst = max(max(row["errors"].values()) for row in group.values() if not row["problem"])
        past = {row["name"] for row in group.values() if row["over_read"]}
        lines.append(
            f"| {family} | {target} | {len(known | shipped)} | {len(files)} | {len(files - wrong)} | {len(group)} "
            f"| {worst:.2g} | {len(past)} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--sample", action="store_true", help="only what the default tests run")
    parser.add_argument("--every", type=int, default=1, help="only every Nth of them")
    parser.add_argument("--results", type=pathlib.Path, help="where results are kept")
    parser.add_argument("--write", type=pathlib.Path, help="put the table of the results into this document")
    arguments = parser.parse_args()
    if arguments.write:
        rows = [json.loads(line) for line in arguments.results.read_text().splitlines()]
        before, rest = arguments.write.read_text().split(BEGIN)
        text = f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{rest.split(END)[1]}"
        arguments.write.write_text(text)
        return 0
    chosen = [
        case for case in cases() if arguments.filter in str(case) and (case.sample or not arguments.sample)
    ]
    failed = 0
    for case in chosen[:: arguments.every]:
        start, row = time.perf_counter(), run(case)
        failed += bool(row["problem"])
        numbers = " ".join(f"{key} {value:.1e}" for key, value in row["errors"].items())
        notes = " loads past its tensors" * row["over_read"] + f" PROBLEM {row['problem']}" * bool(
            row["problem"]
        )
        print(f"{case} {numbers}{notes} {time.perf_counter() - start:.1f} s", flush=True)
        if arguments.results:
            with arguments.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
