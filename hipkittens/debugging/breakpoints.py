# SPDX-License-Identifier: MIT
"""Breakpoints: where a launch stops."""

from __future__ import annotations

import dataclasses
import re

from .symbols import Symbols


@dataclasses.dataclass
class Breakpoint:
    """A breakpoint set by a user. `locations` are its addresses in the current launch.

    condition    an expression that has to be true (register_values.py), or ""
    wave, workgroup    to which it applies; None: any
    hits         how often a wave reached it with the condition true
    """

    number: int
    condition: str = ""
    wave: int | None = None
    workgroup: tuple[int, int, int] | None = None
    hits: int = 0
    locations: list[int] = dataclasses.field(default_factory=list)

    def find(self, symbols: Symbols, kernel: str, entry: int) -> list[int]:
        raise NotImplementedError

    def wants(self, wave: int, workgroup: tuple[int, int, int]) -> bool:
        return self.wave in (None, wave) and self.workgroup in (None, workgroup)

    @property
    def place(self) -> str:
        raise NotImplementedError

    def to_dict(self) -> dict:
        return {
            "number": self.number,
            "place": self.place,
            "condition": self.condition,
            "wave": self.wave,
            "workgroup": list(self.workgroup) if self.workgroup else None,
            "hits": self.hits,
            "locations": self.locations,
        }


@dataclasses.dataclass
class LineBreakpoint(Breakpoint):
    """Where the code of a source line begins, in each place where the compiler has put it."""

    file: str = ""
    line: int = 0
    found_line: int = 0  # the line that has code

    def find(self, symbols: Symbols, kernel: str, entry: int) -> list[int]:
        self.found_line, addresses = symbols.addresses_of(self.file, self.line)
        return addresses

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclasses.dataclass
class KernelBreakpoint(Breakpoint):
    """The first instruction of each kernel whose name contains the pattern: once per launch, or each time one of its selected waves begins."""

    pattern: str = ""

    def wants(self, wave: int, workgroup: tuple[int, int, int]) -> bool:
        is_first = wave == 0 and not any(workgroup)
        return is_first if self.wave is None and self.workgroup is None else super().wants(wave, workgroup)

    def find(self, symbols: Symbols, kernel: str, entry: int) -> list[int]:
        return [entry] if re.search(self.pattern, kernel) else []

    @property
    def place(self) -> str:
        return f"kernel {self.pattern}"


@dataclasses.dataclass
class InstructionBreakpoint(Breakpoint):
    """Every instruction whose text contains the pattern."""

    pattern: str = ""

    def find(self, symbols: Symbols, kernel: str, entry: int) -> list[int]:
        return [row.address for row in symbols.instructions if re.search(self.pattern, row.text)]

    @property
    def place(self) -> str:
        return f"instruction {self.pattern}"


@dataclasses.dataclass
class OffsetBreakpoint(Breakpoint):
    """The instruction at an offset from the kernel's entry, as reported by faults and findings."""

    offset: int = 0

    def find(self, symbols: Symbols, kernel: str, entry: int) -> list[int]:
        address = entry + self.offset
        instruction = symbols.instruction(address)
        return [address] if instruction.address == address else []

    @property
    def place(self) -> str:
        return f"entry+{self.offset:#x}"


_LINE = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d+)$")
_OFFSET = re.compile(r"entry\+(?P<offset>0x[0-9a-fA-F]+|\d+)$")


def parsed(number: int, text: str) -> Breakpoint:
    """Parses `PLACE [wave N] [workgroup X,Y,Z] [if CONDITION]`; PLACE is FILE:LINE, entry+OFFSET, `instruction PATTERN` or a pattern of
    kernels' names. ValueError states what is allowed.
    """
    place, _, condition = text.partition(" if ")
    words = place.split()
    wave, workgroup = None, None
    while len(words) > 2 and words[-2] in ("wave", "workgroup"):
        if words[-2] == "wave":
            wave = _number("wave", words[-1])
        else:
            parts = words[-1].split(",")
            if len(parts) > 3:
                raise ValueError(f"workgroup {words[-1]!r}; allowed: X, X,Y or X,Y,Z")
            numbers = [_number("workgroup", part) for part in parts]
            workgroup = tuple(numbers + [0] * (3 - len(numbers)))
        del words[-2:]
    place = " ".join(words)
    shared = {"condition": condition.strip(), "wave": wave, "workgroup": workgroup}
    if not place:
        raise ValueError(
            "break wants a place: FILE:LINE, entry+OFFSET, `instruction PATTERN`, or a pattern of kernels' names"
        )
    if line := _LINE.match(place):
        return LineBreakpoint(number, **shared, file=line["file"], line=int(line["line"]))
    if offset := _OFFSET.match(place):
        return OffsetBreakpoint(number, **shared, offset=int(offset["offset"], 0))
    of_instructions = place.startswith("instruction ")
    pattern = place.removeprefix("instruction ").strip()
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    kind = InstructionBreakpoint if of_instructions else KernelBreakpoint
    return kind(number, **shared, pattern=pattern)


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{name} {text!r} is no number")
    return int(text)
