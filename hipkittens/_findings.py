# SPDX-License-Identifier: MIT
"""The findings of the simulator's checkers, as Python objects."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

CHECKERS = {"memcheck": 1, "racecheck": 2, "initcheck": 4, "synccheck": 8, "notes": 16}


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a finding: LLVM's text, byte offset from the kernel's entry, source line, the line from which the compiler inlined
    it (the innermost call around it in another folder, or ""), and who executed it.
    """

    text: str
    offset: int
    source: str
    called_from: str
    wave: int | None


@dataclasses.dataclass(frozen=True)
class Finding:
    """One kind of error between one pair of instructions; `count` is how often it occurred.

    checker  memcheck, racecheck, initcheck, synccheck, or notes (about speed, never an error)
    first    the instruction that came first (a load still in flight, an earlier write), if two are involved
    second   the instruction at which it was detected
    place    the register or the bytes
    fix      the wait, barrier or s_nop that would order the two
    """

    checker: str
    kind: str
    kernel: str
    target: str
    message: str
    first: Instruction | None
    second: Instruction | None
    workgroup: tuple[int, int, int]
    lanes: int
    place: str
    fix: str
    count: int

    def __str__(self) -> str:
        fix = f"; needed: {self.fix}" if self.fix else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return (
            f"{self.checker}: {self.kind}: kernel {self.kernel} ({self.target}): {self.message}{fix}{times}"
        )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"workgroup": list(self.workgroup), "lanes": f"{self.lanes:#018x}"}


def _instruction(values: dict[str, Any] | None) -> Instruction | None:
    return Instruction(**values) if values else None


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Each kind and pair of instructions once, with the sum of the counts."""
    known: dict[tuple, Finding] = {}
    for finding in findings:
        offsets = [party.offset if party else None for party in (finding.first, finding.second)]
        key = (finding.kernel, finding.target, finding.kind, *offsets)
        if key in known:
            finding = dataclasses.replace(known[key], count=known[key].count + finding.count)
        known[key] = finding
    return list(known.values())


def from_json(text: str) -> list[Finding]:
    """Parses the simulator's list, launch by launch."""
    return [
        Finding(
            **row
            | {
                "first": _instruction(row["first"]),
                "second": _instruction(row["second"]),
                "workgroup": tuple(row["workgroup"]),
                "lanes": int(row["lanes"], 16),
            }
        )
        for row in json.loads(text)
    ]


def chosen(checks: bool | str) -> int:
    """The bits of `checks`: False and True enable no checker, "all" every one, otherwise names separated by commas."""
    if isinstance(checks, bool):
        return 0
    if checks == "all":
        return sum(CHECKERS.values())
    names = [name.strip() for name in checks.split(",")]
    unknown = [name for name in names if name not in CHECKERS]
    if unknown:
        raise ValueError(
            f"hipkittens.simulate: checks names {unknown[0]!r}; allowed: True, 'all', or some of "
            f"{', '.join(CHECKERS)} with commas between"
        )
    return sum(CHECKERS[name] for name in set(names))


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.checker != "notes"]


def notes(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.checker == "notes"]
