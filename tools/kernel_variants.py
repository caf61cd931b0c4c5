#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The rows of csrc/kernels/*/variants.def, parsed for the build.

A row is `ROW(kind, name, targets, ...)`. A comment of the same form before the rows of a kind names its columns, which are the
fields of its configuration (tools/kernel_layouts.py compares them). `targets` is `both`, `gfx942` or `gfx950`.
Run as a program, prints one line `target operation variant` per code object.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("gfx942", "gfx950")

_ROW = re.compile(r"^ROW\((\w+), ([^()]*)\)$")
_COLUMNS = re.compile(r"^//\s*ROW\((\w+), (name, targets[^()]*)\)")


def read(path: Path) -> list[dict[str, str]]:
    """Each row as {"kind": text, column: text}, in file order."""
    columns: dict[str, list[str]] = {}
    rows: list[dict[str, str]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where, line = f"{path}:{number}", line.strip()
        if match := _COLUMNS.match(line):
            columns[match[1]] = [name.strip() for name in match[2].split(",")]
        elif match := _ROW.match(line):
            cells = [cell.strip() for cell in match[2].split(",")]
            if match[1] not in columns:
                raise SystemExit(
                    f"{where}: no comment '// ROW({match[1]}, name, targets, ...)' before this row"
                )
            if len(cells) != len(columns[match[1]]):
                raise SystemExit(f"{where}: {len(cells)} cells for {len(columns[match[1]])} columns")
            rows.append({"kind": match[1]} | dict(zip(columns[match[1]], cells, strict=True)))
        elif line and not line.startswith("//"):
            raise SystemExit(f"{where}: neither a row nor a comment: {line}")
    names = [row["name"] for row in rows]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise SystemExit(f"{path}: name used twice: {', '.join(sorted(repeated))}")
    return rows


def all_variants(root: Path = ROOT) -> list[tuple[str, str, dict[str, str]]]:
    """(target, operation, row) for every code object to build."""
    result = []
    for path in sorted((root / "csrc" / "kernels").glob("*/variants.def")):
        for row in read(path):
            wanted = row["targets"]
            if wanted not in (*TARGETS, "both"):
                raise SystemExit(
                    f"{path}: {row['name']}: targets is '{wanted}', allowed: both, gfx942, gfx950"
                )
            for target in TARGETS:
                if wanted in (target, "both"):
                    result.append((target, path.parent.name, row))
    return result


if __name__ == "__main__":
    for target, operation, row in all_variants():
        print(target, operation, row["name"])
