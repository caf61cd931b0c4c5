# SPDX-License-Identifier: MIT
"""Instructions that run for disjoint sets of lanes: the two sides of a divergent branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mutation_code import Line
from mutation_registers import registers

_NARROWS = ("s_and_b64", "s_andn2_b64")


@dataclass(frozen=True)
class Sides:
    """Indices of lines. The lanes that run `then` to `other` and those that run `other` to `end`, each without its first line and
    the latter without its last, are disjoint."""

    then: int
    other: int
    end: int

    def separate(self, one: int, later: int) -> bool:
        return self.then < one < self.other < later < self.end


def sides_of_branches(lines: Sequence[Line]) -> list[Sides]:
    """The code that the compiler generates for if and else, if no branch leads back into it:

    s_and_saveexec_b64 X, condition; s_xor_b64 A, exec, X; one side; s_andn2_saveexec_b64 A, A; the other; s_or_b64 exec, exec, A
    """
    index_of = {line.address: index for index, line in enumerate(lines)}
    branches = [(index, index_of[line.target]) for index, line in enumerate(lines) if line.target in index_of]
    found = []
    for other, line in enumerate(lines):
        mask = line.operands[0]
        if line.mnemonic != "s_andn2_saveexec_b64" or line.operands[1] != mask:
            continue
        then = _last(lines, other, lambda each, mask=mask: _writes(each, mask))
        if then is None or then < 1 or not _begins(lines[then - 1], lines[then], mask):
            continue
        # Within the other side the register holds the lanes of this one, for the end.
        end = next((i for i in range(other + 1, len(lines)) if _writes(lines[i], mask) or _ends(lines[i], mask)), None)  # fmt: skip
        if end is None or not _ends(lines[end], mask):
            continue
        sides = Sides(then, other, end)
        if _is_entered_at_its_begin(sides, branches) and all(
            _only_narrows(lines, first, last, branches) for first, last in ((then, other), (other, end))
        ):
            found.append(sides)
    return found


def _begins(saves: Line, makes_mask: Line, mask: str) -> bool:
    return saves.mnemonic == "s_and_saveexec_b64" and (
        makes_mask.mnemonic == "s_xor_b64" and makes_mask.operands == [mask, "exec", saves.operands[0]]
    )


def _ends(line: Line, mask: str) -> bool:
    return line.mnemonic == "s_or_b64" and line.operands == ["exec", "exec", mask]


def _writes(line: Line, mask: str) -> bool:
    return bool(registers(line.operands[0]) & registers(mask)) if line.operands else False


def _last(lines: Sequence[Line], before: int, matches) -> int | None:
    return next((index for index in range(before - 1, -1, -1) if matches(lines[index])), None)


def _is_entered_at_its_begin(sides: Sides, branches: Sequence[tuple[int, int]]) -> bool:
    """Whether control enters at the start and does not return: no branch leads back to it or before it from within or from after it."""
    for source, target in branches:
        if source >= sides.then and target <= sides.end and target <= source:
            return False
        if source < sides.then and sides.then < target <= sides.end:
            return False
    return True


def _only_narrows(lines: Sequence[Line], first: int, last: int, branches: Sequence[tuple[int, int]]) -> bool:
    """Whether all lanes between these lines are among those after the first one: only lanes disabled since then are enabled again."""
    sources: dict[int, list[int]] = {}
    for source, target in branches:
        sources.setdefault(target, []).append(source)
    behind: dict[int, set[str]] = {}  # registers with such lanes, after each line
    for index in range(first + 1, last):
        line = lines[index]
        ways = [each for each in sources.get(index, ()) if first < each < index]
        if index - 1 > first and lines[index - 1].mnemonic not in ("s_branch", "s_endpgm"):
            ways.append(index - 1)
        saved = set.intersection(*(behind[each] for each in ways)) if ways else set()
        operands = line.operands
        if "saveexec" in line.mnemonic:
            if line.mnemonic == "s_andn2_saveexec_b64":
                narrows = operands[1] in saved
            else:
                narrows = line.mnemonic == "s_and_saveexec_b64"
            gains = operands[0]
        elif operands and registers(operands[0]) == {"exec"}:
            narrows = operands[0] == "exec" and (
                (line.mnemonic in _NARROWS and operands[1] == "exec")
                or (line.mnemonic == "s_or_b64" and operands[1] == "exec" and operands[2] in saved)
            )
            gains = None
        else:
            narrows = "cmpx" not in line.mnemonic
            is_mask = line.mnemonic == "s_xor_b64" and operands[1] == "exec" and operands[2] in saved
            gains = operands[0] if is_mask else None
        if not narrows:
            return False
        saved = {each for each in saved if not _writes(line, each)}
        behind[index] = saved | ({gains} if gains else set())
    return True
