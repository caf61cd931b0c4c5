# SPDX-License-Identifier: MIT
"""Registers that operands name."""

from __future__ import annotations

import re


def registers(text: str) -> set[str]:
    """Everything in an operand list that holds state."""
    found = set()
    for kind, one, first, last in re.findall(r"\b([vsa])(?:(\d+)|\[(\d+):(\d+)\])", text):
        numbers = range(int(one), int(one) + 1) if one else range(int(first), int(last) + 1)
        found |= {f"{kind}{number}" for number in numbers}
    return found | set(re.findall(r"\b(vcc|exec|m0|scc)\b", text.replace("_lo", "").replace("_hi", "")))
