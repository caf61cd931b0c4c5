# SPDX-License-Identifier: MIT
"""Parses the registers that operands name."""

from __future__ import annotations

import re


def registers(text: str) -> set[str]:
    """All registers and other state named in an operand list."""
    found = set()
    for kind, one, first, last in re.findall(r"\b([vsa])(?:(\d+)|\[(\d+):(\d+)\])", text):
        numbers = range(int(one), int(one) + 1) if one else range(int(first), int(last) + 1)
        found |= {f"{kind}{number}" for number in numbers}
    return found | set(re.findall(r"\b(vcc|exec|m0|scc)\b", text.replace("_lo", "").replace("_hi", "")))
