# SPDX-License-Identifier: MIT
"""Describes where a launch diverges from the same launch under another order of waves (csrc/simulator/debug/order_comparison.h)."""

from __future__ import annotations

from typing import Any

from .symbols import Symbols

_SHOWN = 8


def of_registers(found: dict[str, Any], seed: int, symbols: Symbols, entry: int) -> str:
    """The registers in which an instruction finds other values than under the order `seed`, and who wrote those."""
    if "other_address" in found:
        other = found["other_address"]
        return f"wave order {seed} has this wave at {_instruction(symbols, other, entry)} instead"
    lines = []
    for each in found["registers"][:_SHOWN]:
        lanes = "" if each["register"][0] not in "va" else f" in {each['lanes']} lanes, lane {each['lane']}"
        by = each.get("written_by")
        writer = "" if by is None else f"; written by {_instruction(symbols, by, entry)}"
        lines.append(f"{each['register']}{lanes}: {each['here']:#010x}, under wave order {seed} {each['there']:#010x}{writer}")  # fmt: skip
    if len(found["registers"]) > _SHOWN:
        lines.append(f"and {len(found['registers']) - _SHOWN} further registers")
    return "\n".join(lines)


def of_memory(differences: list[dict[str, Any]], seed: int) -> str:
    """The memory in which the two runs left different bytes, one line each."""
    return "\n".join(
        f"{each['name']}: {each['bytes']} bytes differ from those under wave order {seed}; from byte {each['offset']}: "
        f"{each['here']}, there {each['there']}"
        for each in differences
    )


def _instruction(symbols: Symbols, address: int, entry: int) -> str:
    line = symbols.line_at(address)
    return f"`{symbols.instruction(address).text}` at entry+{address - entry:#x}" + (
        f" ({line})" if line else ""
    )
