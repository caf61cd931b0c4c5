# SPDX-License-Identifier: MIT
"""Markdown for the pages on operations."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
