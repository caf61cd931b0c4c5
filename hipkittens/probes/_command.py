# SPDX-License-Identifier: MIT
"""`hipkittens probe`: the facts as a table, JSON, or a file to send back."""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from .. import __version__, _installation, _library
from .._doctor_report import without_home
from .._output_file import require_writable
from .._progress import progress_bar
from .._whole_table import print_whole
from . import every
from ._device import Device
from ._examine import ask, devices, of_target
from ._fact import AGREE, DIFFER, FAILED, MEASURED, NOT_SHOWN, Answer

_FORMAT = 1
_MARKS = {
    AGREE: "[green]agree[/]",
    DIFFER: "[red]DIFFER[/]",
    FAILED: "[red]FAILED[/]",
    MEASURED: "[cyan]measured[/]",
    NOT_SHOWN: "needs a GPU",
}
_WRONG = (DIFFER, FAILED)


def _chosen(only: Sequence[str] | None) -> list[str]:
    names = list(every())
    if unknown := [name for name in only or () if name not in names]:
        raise ValueError(f"--only is {unknown[0]}; allowed: {', '.join(names)}")
    return [name for name in names if not only or name in only]


def _code(target: str) -> dict[str, str]:
    """What was launched: the sha256 of each probe's code object."""
    return {
        entry["variant"]: entry["sha256"]
        for entry in _installation.pack(target).entries
        if entry["operation"] == _installation.PROBES
    }


def _to_dict(runs: Sequence[tuple[Device, list[Answer]]], asking: str | None) -> dict[str, Any]:
    """The report; `asking`: the fact whose answer is still missing."""
    return {
        "format": _FORMAT,
        "hipkittens": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_hip": torch.version.hip,
        "system": platform.platform(),
        "hip": _library.hip_status(),
        "asking": asking,
        "runs": [
            {
                "device": {
                    "name": device.name,
                    "arch": device.target,
                    "simulated": device.simulated,
                    **device.facts,
                },
                "code_objects": _code(device.target),
                "verdicts": Counter(answer.verdict for answer in answers),
                "facts": [answer.to_dict() for answer in answers],
            }
            for device, answers in runs
        ],
    }


def _remark(answer: Answer) -> str:
    if answer.verdict == FAILED:
        return (answer.error or "").splitlines()[0]
    if answer.verdict == DIFFER:
        first = answer.mismatches[0]
        return f"{answer.mismatch_count} places; at {first['at']} expected {first['expected']}, found {first['found']}"
    assumed = {name: f"{each['value']:g} {each['unit']}" for name, each in (answer.assumed or {}).items()}
    if answer.verdict == MEASURED:
        return ", ".join(
            f"{name} {value}" + (f" (model: {assumed[name]})" if name in assumed else "")
            for name, value in answer.found.items()
        )
    if answer.verdict == NOT_SHOWN:
        return "model: " + ", ".join(f"{name} {text}" for name, text in assumed.items())
    return ""


def _print(device: Device, answers: Sequence[Answer]) -> None:
    table = Table(title=device.name)
    for heading in ("fact", "", "what is stated", "what was found"):
        table.add_column(heading, no_wrap=True)
    for answer in answers:
        table.add_row(
            answer.fact.name, _MARKS[answer.verdict], escape(answer.fact.statement), escape(_remark(answer))
        )
    print_whole(table)
    counts = Counter(answer.verdict for answer in answers)
    print(f"{device.name}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def main(
    as_json: bool,
    *,
    target: str | None = None,
    gpu: int | None = None,
    only: Sequence[str] | None = None,
    report: str | None = None,
) -> int:
    """1 if a device differs in a fact, or a launch fails. ValueError for invalid options."""
    names = _chosen(only)
    if report is not None:
        require_writable("--report", report)
    facts = [every()[name] for name in names]
    asked = devices(target, gpu)
    if not any(of_target(device, facts) for device in asked):
        raise ValueError(
            f"--only names no fact of {asked[0].target}; {names[0]} is one of {facts[0].targets[0]}"
        )
    runs: list[tuple[Device, list[Answer]]] = [(device, []) for device in asked]

    def write(asking: str | None) -> None:
        if report is not None:
            text = json.dumps(without_home(_to_dict(runs, asking)), indent=1) + "\n"
            Path(report).write_text(text)

    with progress_bar() as progress:
        task = progress.add_task("asking", total=sum(len(of_target(device, facts)) for device in asked))
        for device, answers in runs:
            for fact in of_target(device, facts):
                progress.update(task, description=f"{device.name}: {fact.name}", advance=1)
                write(f"{device.name}: {fact.name}")  # a fault on silicon may end the process
                answers.append(ask(device, fact))
    write(None)
    described = without_home(_to_dict(runs, None))
    if as_json:
        json.dump(described, sys.stdout, indent=2)
        print()
    else:
        for device, answers in runs:
            _print(device, answers)
        if report is not None:
            print(f"written to {report}")
    return int(any(answer.verdict in _WRONG for _, answers in runs for answer in answers))
