# SPDX-License-Identifier: MIT
"""`hipkittens demo`: the kernels on real tensors in the simulated GPUs, compared with PyTorch and float64."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from . import _installation
from ._examples import examples, run
from ._progress import progress_bar


def main(as_json: bool, target: str | None) -> int:
    targets = (target,) if target else _installation.TARGETS
    jobs = examples()
    rows: list[dict[str, Any]] = []
    with progress_bar() as progress:
        task = progress.add_task("simulating", total=len(targets) * len(jobs))
        for chosen in targets:
            for operation, example in jobs:
                progress.update(task, description=f"{chosen} {example.title}")
                rows += run(chosen, operation, example)
                progress.advance(task)
    wrong = [row for row in rows if not row["ok"]]
    if as_json:
        json.dump({"ok": not wrong, "rows": rows}, sys.stdout, indent=2)
        print()
    else:
        _print_table(rows, wrong)
    return int(bool(wrong))


def _print_table(rows: list[dict[str, Any]], wrong: list[dict[str, Any]]) -> None:
    table = Table(title="Simulated GPUs beside PyTorch (errors against float64)")
    for heading in ("target", "job", "m, n, k or shape", "variant"):
        table.add_column(heading, no_wrap=True)
    for heading in ("max error", "PyTorch's", "rms ratio", "instructions", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        table.add_row(
            row["target"],
            f"{row['job']}, {row['result']}",
            "x".join(map(str, row["shape"])),
            row["variant"],
            f"{row['max_ours']:.3g}",
            f"{row['max_torch']:.3g}",
            f"{row['ratio_rms']:.2f}",
            f"{row['instructions']:,}" if row["instructions"] else "",
            f"{row['seconds']:.2f}" if row["seconds"] is not None else "",
            "[green]ok[/]" if row["ok"] else "[red]WRONG[/]",
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if wrong:
        print(
            f"{len(wrong)} results are wrong: error more than twice PyTorch's, or integers not exact",
            file=sys.stderr,
        )
    else:
        print(f"All {len(rows)} results are within twice PyTorch's own error, integers bit for bit.")
