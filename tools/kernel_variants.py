#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The rows of csrc/kernels/*/variants.def, read the way the build needs them.

A row is `SOMETHING_VARIANT(name, column, ...)`. The names of the columns stand in the list itself, in the comment
`// columns: name, targets, ...`; a column `targets` holds `both`, `gfx942` or `gfx950` (both, when there is none).
Run as a program, prints one line `target operation variant` per code object.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("gfx942", "gfx950")

_ROW = re.compile(r"^\s*([A-Z][A-Z0-9_]*)\(([^()]*)\)\s*(?://.*)?$")
_COLUMNS = re.compile(r"^//\s*columns:\s*(.*)$")


def read(path: Path) -> list[dict[str, str]]:
    """Each row as {column: text}, in file order."""
    columns: list[str] | None = None
    rows: list[dict[str, str]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := _COLUMNS.match(line.strip()):
            columns = [name.strip() for name in match[1].split(",")]
        elif match := _ROW.match(line):
            cells = [cell.strip() for cell in match[2].split(",")]
            if columns is None:
                raise SystemExit(f"{path}:{number}: a row before the comment '// columns: name, ...'")
            if len(cells) != len(columns):
                raise SystemExit(f"{path}:{number}: {len(cells)} cells for {len(columns)} columns")
            rows.append(dict(zip(columns, cells, strict=True)))
        elif line.strip() and not line.strip().startswith(("//", "#")):
            raise SystemExit(f"{path}:{number}: neither a row nor a comment: {line.strip()}")
    names = [row["name"] for row in rows]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise SystemExit(f"{path}: name used twice: {', '.join(sorted(repeated))}")
    return rows


def all_variants(root: Path = ROOT) -> list[tuple[str, str, dict[str, str]]]:
    """(target, operation, row) for every code object to build."""
    result = []
    for path in sorted((root / "csrc" / "kernels").glob("*/variants.def")):
        for row in read(path):
            wanted = row.get("targets", "both")
            if wanted not in (*TARGETS, "both"):
                raise SystemExit(f"{path}: {row['name']}: targets is '{wanted}', allowed: both, gfx942, gfx950")
            for target in TARGETS:
                if wanted in (target, "both"):
                    result.append((target, path.parent.name, row))
    return result


if __name__ == "__main__":
    for target, operation, row in all_variants():
        print(target, operation, row["name"])
