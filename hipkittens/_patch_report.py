# SPDX-License-Identifier: MIT
"""What hipkittens.patch did with each module, and why it did not replace the others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class PatchRow:
    """One module and one of its parts.

    module       its name in the tree, "" for the root
    kind         its class
    part         "norm", "linear", "attention", "rotary", "mlp", "moe", "linear_attention", or "" if there is no kernel for it
    replaced_by  the functions of this package that compute it now, or ""
    reason       why it was not replaced, or ""
    """

    module: str
    kind: str
    part: str
    replaced_by: str = ""
    reason: str = ""


@dataclass
class PatchReport:
    """The rows of every module that computes something, in the order of the tree; printed as a table."""

    model: str
    rows: list[PatchRow] = field(default_factory=list)
    dry_run: bool = False
    _undo: list[Callable[[], None]] = field(default_factory=list, repr=False)

    @property
    def replaced(self) -> list[PatchRow]:
        return [row for row in self.rows if row.replaced_by]

    @property
    def left(self) -> list[PatchRow]:
        return [row for row in self.rows if not row.replaced_by]

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "dry_run": self.dry_run,
            "replaced": len(self.replaced),
            "rows": [asdict(row) for row in self.rows],
        }

    def to_json(self) -> str:
        """as_dict() as JSON text."""
        return json.dumps(self.as_dict(), indent=2)

    def table(self):
        """A rich.table.Table with one line for equal modules: those whose names differ only in their numbers."""
        from rich.table import Table

        groups: dict[tuple, int] = {}
        for row in self.rows:
            key = (re.sub(r"\d+", "*", row.module), row.kind, row.part, row.replaced_by, row.reason)
            groups[key] = groups.get(key, 0) + 1
        would = "would be replaced by" if self.dry_run else "replaced by"
        table = Table(title=f"{self.model}: {len(self.replaced)} of {len(self.rows)} {would} hipkittens")
        for heading in ("module", "class", "", would, "why not"):
            table.add_column(heading, overflow="fold")
        table.columns[2].justify = "right"
        for (name, kind, part, replaced_by, reason), count in groups.items():
            label = f"{kind} ({part})" if part in ("rotary", "mlp", "moe") else kind
            table.add_row(name or "(itself)", label, str(count), replaced_by, reason)
        return table

    def print(self, console: Any = None) -> None:
        """Prints the table, to standard output unless a rich.console.Console is passed."""
        from rich.console import Console

        (console or Console()).print(self.table())

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=160)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get()
