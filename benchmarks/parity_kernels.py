#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs every kernel of the packs at least once with all of the simulator's checkers on.

    python benchmarks/parity_kernels.py [--target gfx950] [--folder softmax] [--without-listed gemm] [--json]

Exit code 1 when a kernel was never launched, a result is not finite (nothing that was not written stays what it was: it
is NaN), or a checker finds something. What the results should be is benchmarks/parity.py's matter.
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
    """Adds (target, name) to `seen` whenever the runtime asks for a code object, which is before its first launch."""
    right = Pack.image

    def image(self: Pack, entry: dict[str, Any]) -> bytes:
        seen.add((self.path.stem, entry["name"]))
        return right(self, entry)

    Pack.image = image


def run(target: str, folder: str | None = None, without: Collection[str] = ()) -> dict[str, Any]:
    """`without`: titles of problems that are left out."""
    seen: set[tuple[str, str]] = set()
    loads(seen)
    broken = []
    with hipkittens.simulate(target, checks="all") as simulation:
        for problem in _representative.problems_of_every_kernel(folder):
            if problem.title in without:
                continue
            if not all(tensor.float().isfinite().all() for tensor in problem.run()):
                broken.append(problem.title)
    listed = {
        entry["name"]
        for entry in _installation.kernels_of_operations(target)
        if folder in (None, entry["operation"])
    }
    ran = {name for of, name in seen if of == target}
    return {
        "target": target,
        "kernels": len(listed),
        "never_launched": sorted(listed - ran),
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
        help="leave out the problems by which `hipkittens kernels list --resources --folder FOLDER` runs its kernels, with every checker, too",
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    listed = {
        problem.title for folder in arguments.without_listed for problem in _representative.problems(folder)
    }
    rows = [
        run(target, arguments.folder, listed)
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
