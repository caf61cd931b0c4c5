# SPDX-License-Identifier: MIT
"""Tables whose figures are never truncated."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

_WIDEST = 100_000


def print_whole(table: Table) -> None:
    """Prints a table as wide as its contents, to standard output. A narrower terminal wraps its lines, which remains readable, unlike
    columns of a letter and an ellipsis; a pipe gets each row as one line.
    """
    console = Console(width=Console(width=_WIDEST).measure(table).maximum)
    if sys.stdout.isatty():
        console.print(table, crop=False)
        return
    with console.capture() as printed:
        console.print(table, crop=False)
    print("\n".join(line.rstrip() for line in printed.get().splitlines()))
