#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads the output of `pip install --verbose` and shows the build's progress: the current step, n of m, and the time left.

    python -m pip install --verbose . 2>&1 | python tools/build_progress.py --log build/last.log

The log receives every line. Failures are only shown; the exit code is always 0, so that a pipe with pipefail has pip's.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] (.*)")
KERNEL = re.compile(r"--target (\S+) --operation (\S+)(?: --variant (\S+))?")
SOURCE = re.compile(r" -c \S*?csrc/(\S+)")
FAILURE = re.compile(r"^\s*(FAILED:|ninja: build stopped|ERROR:|error:)|\berror:|^\s*CMake Error")
SHOWN_LINES = 40  # lines before the first failure, and after
QUIET_STEPS = 20  # without a terminal to draw on: one line per this many steps


def what_is_compiled(command: str) -> str:
    """A short description of a ninja command."""
    if kernel := KERNEL.search(command):
        target, operation, variant = kernel.groups()
        return f"{operation}.{variant} for {target}" if variant else f"headers of {operation} for {target}"
    if source := SOURCE.search(command):
        return source[1]
    return "linking" if " -o " in command else "packing" if "pack_kernels" in command else "building"


def follow(lines: Iterable[str], log: TextIO, console: Console) -> list[str]:
    """Draws the steps found in `lines` and returns all of them."""
    seen: list[str] = []
    columns = (
        TextColumn("{task.fields[what]:44.44}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    draws = console.is_terminal and not console.is_dumb_terminal
    with Progress(*columns, console=console, transient=True, disable=not draws) as progress:
        task = progress.add_task("build", total=None, what="preparing")
        told = -1
        for line in lines:
            log.write(line)
            seen.append(line)
            if not (step := STEP.match(line)):
                continue
            done, total, what = int(step[1]), int(step[2]), what_is_compiled(step[3])
            progress.update(task, completed=done, total=total, what=what)
            part = done * QUIET_STEPS // max(total, 1)
            if not draws and part != told and total > QUIET_STEPS:
                console.print(f"[{done}/{total}] {what}", markup=False, highlight=False)
                told = part
    return seen


def failure(lines: list[str]) -> list[str]:
    """The lines around the first one that reports a failure."""
    for number, line in enumerate(lines):
        if FAILURE.search(line):
            return lines[max(0, number - 5) : number + SHOWN_LINES]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    with arguments.log.open("w") as log:
        lines = follow(sys.stdin, log, Console())
    if shown := failure(lines):
        sys.stderr.writelines(shown)
        print(f"All of it: {arguments.log}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
