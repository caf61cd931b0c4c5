#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs every kernel of the packs at least once with all of the simulator's checkers on.

    python benchmarks/parity_kernels.py [--target gfx950] [--folder softmax] [--without-listed gemm] [--json]

Exit code 1 when a kernel was never launched, a result is not finite (memory that was not written holds
NaN), or a checker finds something. The correctness of results is tested by benchmarks/parity.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from typing import Any

import hipkittens
from hipkittens import _installation, _representative
from hipkittens._pack import Pack

TARGETS = ("gfx942", "gfx950")


def loads(seen: set[tuple[str, str]]) -> None:
    """Adds (target, name) to `seen` whenever the runtime requests a code object, which is before its first launch."""
    right = Pack.image

    def image(self: Pack, entry: dict[str, Any]) -> bytes:
        seen.add((self.path.stem, entry["name"]))
        return right(self, entry)

    Pack.image = image


def run(target: str, folder: str | None = None, listed: Collection[str] = ()) -> dict[str, Any]:
    """`listed`: folders to skip, whose kernels and problems are covered by `kernels list --resources`."""
    elsewhere = {problem.title for each in listed for problem in _representative.problems(each)}
    seen: set[tuple[str, str]] = set()
    loads(seen)
    broken = []
    with hipkittens.simulate(target, checks="all") as simulation:
        for problem in _representative.problems_of_every_kernel(folder):
            if problem.title not in elsewhere and not _representative.is_finite(problem.run()):
                broken.append(problem.title)
    kernels = {
        entry["name"]
        for entry in _installation.kernels_of_operations(target)
        if folder in (None, entry["operation"]) and entry["operation"] not in listed
    }
    ran = {name for of, name in seen if of == target}
    return {
        "target": target,
        "kernels": len(kernels),
        "never_launched": sorted(kernels - ran),
        "not_finite": broken,
        "findings": [str(finding) for finding in simulation.findings],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=TARGETS, help="default: both")
    folders = sorted({entry["operation"] for entry in _installation.kernels_of_operations(TARGETS[0])})
    parser.add_argument("--folder", choices=folders, help="of csrc/kernels; default: all")
    parser.add_argument(
        "--without-listed",
        action="append",
        choices=folders,
        default=[],
        metavar="FOLDER",
        help="leave out the kernels of FOLDER and the problems by which `hipkittens kernels list --resources` runs them, with every "
        "checker, too; its other problems run",
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [
        run(target, arguments.folder, arguments.without_listed)
        for target in ((arguments.target,) if arguments.target else TARGETS)
    ]
    if arguments.json:
        json.dump({"rows": rows}, sys.stdout, indent=1)
        print()
    else:
        for row in rows:
            print(f"{row['target']}: {row['kernels']} kernels, {len(row['never_launched'])} never launched, "
                  f"{len(row['not_finite'])} results not finite, {len(row['findings'])} findings")  # fmt: skip
            for text in (*row["never_launched"], *row["not_finite"], *row["findings"]):
                print("  " + text)
    return int(any(row[key] for row in rows for key in ("never_launched", "not_finite", "findings")))


if __name__ == "__main__":
    raise SystemExit(main())
