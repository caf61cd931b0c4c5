#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs every test that the default run leaves out (`-m slow`), file by file, and records the results in docs/slow_tests.md.

    python tools/slow_tests.py [FILE ...] [--page]        # ./run test --slow builds first and passes --page

The rows of files that were not run are kept. Exit code 1 when a test failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "slow_tests.md"
HEAD = """# Slow tests

`./run test` leaves out slow tests: random sweeps, covering arrays in exact arithmetic, complete mutation runs, AITER's objects,
builds. `./run test --slow` runs all of them and writes this page; `python tools/slow_tests.py tests/test_parity.py --page` runs one
file. Each row is the last run of a file; seconds depend on the machine and on the number of processes at the time. "skipped" counts tests
with a missing dependency.

| file | passed | failed | skipped | seconds | date |
| --- | ---: | ---: | ---: | ---: | --- |
"""
NOT_RUN = "not run"


@dataclass(frozen=True)
class Run:
    file: str
    passed: int
    failed: int
    skipped: int
    seconds: int
    date: str

    def line(self) -> str:
        return (
            f"| {self.file} | {self.passed} | {self.failed} | {self.skipped} | {self.seconds} | {self.date} |"
        )


def files_with_slow_tests() -> list[str]:
    """Files with slow tests. Raises SystemExit with pytest's output when collection fails."""
    command = [sys.executable, "-m", "pytest", "-m", "slow", "--collect-only", "-q", "-o", "addopts="]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return sorted({line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line})


@dataclass(frozen=True)
class Case:
    """A test of one run: `outcome` is passed, failed or skipped; `properties` are the values passed to `record_property`."""

    name: str
    outcome: str
    properties: Mapping[str, str]


def cases(file: str, options: Sequence[str], packages: Path | None = None) -> list[Case]:
    """Runs one file in a separate process, so that a crash affects no other file; a crash counts as one more failed test. Modules in the
    folder `packages` take precedence over the installed ones."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", file, *options]
        environment = os.environ | ({"PYTHONPATH": str(packages)} if packages else {})
        status = subprocess.run(command, cwd=ROOT, env=environment).returncode
        if report.is_file():
            for test in ElementTree.parse(report).iter("testcase"):
                tags = {child.tag for child in test}
                failed, skipped = bool(tags & {"failure", "error"}), "skipped" in tags
                properties = {each.attrib["name"]: each.attrib["value"] for each in test.iter("property")}
                outcome = "failed" if failed else "skipped" if skipped else "passed"
                found.append(Case(test.attrib["name"], outcome, properties))
    if status and not any(case.outcome == "failed" for case in found):
        found.append(Case(f"pytest ended with {status}", "failed", {}))
    return found


def run(file: str, more: Sequence[str] = ()) -> Run:
    """Runs the slow tests of a file."""
    started = time.monotonic()
    outcomes = [case.outcome for case in cases(file, ["-m", "slow", *more])]
    seconds = round(time.monotonic() - started)
    counts = (outcomes.count(outcome) for outcome in ("passed", "failed", "skipped"))
    return Run(file, *counts, seconds, datetime.date.today().isoformat())


def read(page: Path = PAGE) -> dict[str, Run]:
    """The rows of the page by file."""
    found = {}
    for line in page.read_text().splitlines() if page.is_file() else ():
        if line.startswith("| tests/"):
            file, *numbers, date = (cell.strip() for cell in line.strip("|").split("|"))
            found[file] = Run(file, *map(int, numbers), date)
    return found


def text(rows: dict[str, Run]) -> str:
    return HEAD + "".join(rows[file].line() + "\n" for file in sorted(rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="default: every file that has slow tests")
    parser.add_argument("--page", action="store_true", help="write docs/slow_tests.md")
    arguments = parser.parse_args()
    every = files_with_slow_tests()
    unknown = set(arguments.files) - set(every)
    if unknown:
        raise SystemExit(
            f"no slow tests in {', '.join(sorted(unknown))}; there are some in {', '.join(every)}"
        )
    rows = {file: Run(file, 0, 0, 0, 0, NOT_RUN) for file in every}
    rows |= {file: row for file, row in read().items() if file in every}
    failed = 0
    for number, file in enumerate(arguments.files or every, 1):
        print(f"== {file} ({number} of {len(arguments.files or every)})", flush=True)
        rows[file] = run(file)
        failed += rows[file].failed
        if arguments.page:
            PAGE.write_text(text(rows))
    print(text(rows))
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
