# SPDX-License-Identifier: MIT
"""`hipkittens kernels list --resources`: the resources and statistics of the kernels, as tables or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ._progress import progress_bar
from ._resources import collect

Column = tuple[str, Callable[[dict[str, Any]], str]]


def _bytes(count: int) -> str:
    return f"{count >> 10}K" if count >= 1024 and count % 1024 == 0 else str(count)


def _of_run(show: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
    return lambda row: "not run" if row["run"] is None else show(row["run"])


def _per_turn(name: str) -> Callable[[dict[str, Any]], str]:
    return _of_run(lambda run: f"{run['hot_loop']['per_turn'][name]:.0f}")


_TAKES: tuple[Column, ...] = (
    ("VGPR", lambda row: str(row["vgprs"])),
    ("AGPR", lambda row: str(row["agprs"])),
    ("SGPR", lambda row: str(row["sgprs"])),
    ("LDS", lambda row: _bytes(row["lds_bytes"])),
    ("scratch", lambda row: str(row["scratch_bytes"])),
    ("spills", lambda row: str(row["vgpr_spills"] + row["sgpr_spills"])),
    ("waves", lambda row: f"{row['waves_per_simd']} {row['occupancy_limit']}"),
    ("code", lambda row: str(row["code_bytes"])),
)
_DOES: tuple[Column, ...] = (
    ("turns", _of_run(lambda run: f"{run['hot_loop']['turns_per_wave']:.3g}")),
    ("MFMA", _per_turn("mfma")),
    ("VALU", _per_turn("valu")),
    ("SALU", _per_turn("salu")),
    ("SMEM", _per_turn("scalar_memory")),
    ("LDS", _per_turn("lds")),
    ("VMEM", _per_turn("vector_memory")),
    ("wait", _per_turn("wait")),
    ("MFMA%", _of_run(lambda run: f"{100 * run['hot_loop']['mfma_share']:.0f}")),
    ("conflicts", _of_run(lambda run: f"{run['lds_conflict_cycles']}")),
    ("bytes", _of_run(lambda run: f"{run['bytes_per_useful_byte']:.2f}")),
    ("16B%", _of_run(lambda run: f"{100 * run['sixteen_byte_share']:.0f}")),
)
_LEGEND = (
    "VGPR: of the unified file, AGPRs among them; waves: per SIMD, and what limits them; code: bytes. turns ... wait: of "
    "the hot loop, per wave, and instructions in one turn; conflicts: LDS cycles of the whole launch; bytes: moved "
    "between lanes and memory per byte that was touched; 16B%: those that moved 16 bytes a lane."
)


def main(as_json: bool, targets: tuple[str, ...], folders: Sequence[str] = ()) -> int:
    rows = _collect(targets, folders)
    if as_json:
        json.dump(rows, sys.stdout, indent=2)
        print()
        return 0
    console = Console(width=None if sys.stdout.isatty() else 170)
    for target in targets:
        of_target = [row for row in rows if row["target"] == target]
        table = _table(target, _TAKES + _DOES, of_target)
        if console.measure(table).maximum <= console.width:
            console.print(table)
        else:
            console.print(_table(target, _TAKES, of_target), _table(target, _DOES, of_target))
    console.print(_LEGEND)
    return 0


def _collect(targets: tuple[str, ...], folders: Sequence[str]) -> list[dict[str, Any]]:
    with progress_bar() as bar:
        task = bar.add_task("simulating", total=None, completed=-1)

        def progress(title: str, total: int) -> None:
            bar.update(task, description=title, total=total, advance=1)

        return collect(targets, progress, folders)


def _table(target: str, columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> Table:
    table = Table(title=target, pad_edge=False, padding=(0, 1, 0, 0), box=None)
    table.add_column("kernel", overflow="fold")
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["name"], *(show(row) for _, show in columns))
    return table
