# SPDX-License-Identifier: MIT
"""The output of `hipkittens doctor`: a table, JSON, or the text to paste into a bug report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ._doctor import Examination, examine
from ._output_file import require_writable

_MARKS = {"good": "[green]good[/]", "note": "[yellow]note[/]", "problem": "[red]PROBLEM[/]"}
_PATHS = ("HIPKITTENS_CHECKS_FILE", "HIPKITTENS_TIMING_FILE")  # variables with private values


def _print_table(found: Examination) -> None:
    versions = found.facts["versions"]
    table = Table(
        title=f"hipkittens {versions['hipkittens']}, Python {versions['python']}, torch {versions['torch']}, stable ABI "
        f"{versions['stable_abi'] or 'of unknown version'}"
    )
    table.add_column("what", no_wrap=True)
    table.add_column("")
    table.add_column("found", overflow="fold")
    for finding in found.findings:
        remedy = f"\n-> {finding.remedy}" if finding.remedy else ""
        table.add_row(finding.subject, _MARKS[finding.status], finding.text + remedy)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    console.print(found.verdict_text, soft_wrap=True, markup=False)


def without_home(value: Any) -> Any:
    """Paths below the home folder begin with ~, so that they do not contain the user's name."""
    if isinstance(value, dict):
        return {name: without_home(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_home(item) for item in value]
    home = str(Path.home())
    return value.replace(home, "~") if isinstance(value, str) and len(home) > 1 else value


def report_text(found: Examination) -> str:
    """Markdown: the verdict, what is not good, and all facts. The only paths are those of packages and libraries."""
    facts = json.loads(json.dumps(found.facts))
    for name in _PATHS:
        if name in facts["environment"]:
            facts["environment"][name] = "(set)"
    lines = ["### hipkittens doctor", "", found.verdict_text, ""]
    for finding in found.findings:
        if finding.status != "good":
            lines.append(f"* {finding.status}: {finding.subject}: {finding.text}")
    lines += ["", "| device | family | error over PyTorch's | |", "|---|---|---|---|"]
    for row in found.kernels:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append(
            f"| {row['device']} | {row['family']} | {ratio} | {row['error'] or ('ok' if row['ok'] else 'WRONG')} |"
        )
    return without_home("\n".join([*lines, "", "```json", json.dumps(facts, indent=1), "```", ""]))


def main(as_json: bool, report: str | None) -> int:
    if report is not None and report != "-":
        require_writable("--report", report)
    found = examine()
    if report == "-":
        print(report_text(found), end="")
    elif report is not None:
        Path(report).write_text(report_text(found))
        print(f"{found.verdict_text}\nwritten to {report}")
    elif as_json:
        json.dump(found.to_dict(), sys.stdout, indent=2)
        print()
    else:
        _print_table(found)
    return found.exit_code
