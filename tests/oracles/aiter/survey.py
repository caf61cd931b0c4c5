# SPDX-License-Identifier: MIT
"""Runs AITER's objects and prints what came out.

    python -m tests.oracles.aiter.survey [--filter TEXT] [--sample] [--write docs/foreign_kernels.md]

Exit code 1 if an object misses its bar or fails.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
import time

from tests.oracles.aiter import wheel
from tests.oracles.aiter.catalog import Case, cases

BEGIN, END = "<!-- table: python -m tests.oracles.aiter.survey --write -->", "<!-- end of table -->"


def survey(chosen: list[Case]) -> list[dict]:
    rows = []
    for case in chosen:
        start, row = time.perf_counter(), {"case": case, "problem": "", "worst": {}, "over_read": False}
        try:
            outcome = case.action()
            row["worst"], row["over_read"] = dict(outcome.errors), bool(outcome.run.over_read)
            outcome.check()
        except Exception as error:
            row["problem"] = f"{type(error).__name__}: {error}".split("\n")[0]
        rows.append(row)
        numbers = " ".join(f"{key} {value:.1e}" for key, value in row["worst"].items())
        notes = " reads past its tensors" * row["over_read"] + f" PROBLEM {row['problem']}" * bool(
            row["problem"]
        )
        print(f"{case} {numbers}{notes} {time.perf_counter() - start:.1f} s", flush=True)
    return rows


def table(rows: list[dict]) -> str:
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["case"].family, row["case"].target].append(row)
    lines = [
        "| family | target | files | run | right | launches | worst error | files that read past their tensors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (family, target), group in sorted(groups.items()):
        folder = f"{target}/{family}/"
        shipped = [name for name in wheel.objects() if name.startswith(folder)]
        files = {row["case"].name for row in group}
        wrong = {row["case"].name for row in group if row["problem"]}
        worst = max(
            (max(row["worst"].values()) for row in group if row["worst"] and not row["problem"]), default=0
        )
        past = len({row["case"].name for row in group if row["over_read"]})
        total = len(set(shipped) | files)
        lines.append(
            f"| {family} | {target} | {total} | {len(files)} | {len(files - wrong)} | {len(group)} | {worst:.2g} | {past} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--sample", action="store_true", help="only what the default tests run")
    parser.add_argument("--write", type=pathlib.Path, help="put the table into this file")
    arguments = parser.parse_args()
    chosen = [
        case for case in cases() if arguments.filter in str(case) and (case.sample or not arguments.sample)
    ]
    rows = survey(chosen)
    text = table(rows)
    print(text)
    if arguments.write:
        before, rest = arguments.write.read_text().split(BEGIN)
        arguments.write.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")
    return int(any(row["problem"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
