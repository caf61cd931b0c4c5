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
from collections.abc import Iterable

from tests.oracles.aiter import wheel
from tests.oracles.aiter.catalog import Case, also_run, cases, family

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
    everything = {str(case): case for case in cases()}
    by_name = collections.defaultdict(list)
    latest = {row["case"]: row for row in rows if row["case"] in everything}  # the last run of a case counts
    for row in latest.values():
        by_name[row["name"]].append(row)
    groups = collections.defaultdict(list)
    for name in sorted(wheel.objects()):
        groups[family(name), name.split("/")[0]].append(name)
    header = (
        "family", "target", "files", "run", "agree", "agree, but not as named", "disagree", "not run", "launches",
        "worst error", "load past their tensors",
    )  # fmt: skip
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    total = collections.Counter()
    for (group, target), names in sorted(groups.items()):
        launched = [row for name in names for row in by_name[name]]
        run = {row["name"] for row in launched}
        wrong = {row["name"] for row in launched if row["problem"]}
        deviating = {
            case.name for case in everything.values() if case.name in run - wrong and case.deviations
        }
        behind = sum(also_run(name) for name in names)
        counts = {
            "files": len(names), "run": len(run) + behind, "agree": len(run - wrong - deviating) + behind,
            "deviate": len(deviating), "disagree": len(wrong), "not run": len(names) - len(run) - behind,
            "launches": len(launched),
        }  # fmt: skip
        total.update(counts)
        errors = [max(row["errors"].values()) for row in launched if not row["problem"]]
        past = len({row["name"] for row in launched if row["over_read"]})
        total["past"] += past
        cells = [group, target, *counts.values(), f"{max(errors):.2g}" if errors else "-", past]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    cells = ["all", "", *(total[key] for key in counts), "", total["past"]]
    lines.append("| " + " | ".join(f"**{cell}**" if cell != "" else "" for cell in cells) + " |")
    return "\n".join([*lines, "", *deviations(everything.values())])


def deviations(every: Iterable[Case]) -> list[str]:
    """How many objects deviate from their names in which way, and how many of them AITER's host can choose."""
    ways = collections.defaultdict(set)
    for case in every:
        for deviation in case.deviations:
            ways[deviation].add(case.name)
    lines = [
        "| how an object deviates from its name | files | in the tables of AITER's host |",
        "|---|---|---|",
    ]
    for deviation, names in sorted(ways.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {deviation} | {len(names)} | {len(names & wheel.in_tables())} |")
    return lines


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
