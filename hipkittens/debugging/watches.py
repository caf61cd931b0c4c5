# SPDX-License-Identifier: MIT
"""Watches: registers, LDS or a launch's memory whose change stops a launch."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

_ALLOWED = "v3, v[0:4], a3, v3[5] (lane 5 of it), lds OFFSET BYTES, memory ADDRESS BYTES, or a tensor's name [OFFSET BYTES]"
_REGISTER = re.compile(r"(?P<kind>[va])(?P<number>\d+)(\[(?P<lane>\d+)\])?$")
_RANGE = re.compile(r"(?P<kind>[va])\[(?P<first>\d+):(?P<last>\d+)\]$")


@dataclasses.dataclass
class Watch:
    """A watch ends with its launch.

    place       as a user writes it
    bytes       how many it compares
    request     those bytes, in the protocol of csrc/simulator/debug/debug_session.h
    workgroup   (linear) to which these registers or LDS belong; None: memory, which all workgroups share
    condition   an expression that has to be true for a stop, or ""
    number      shared with breakpoints
    """

    place: str
    bytes: int
    request: str
    launch: int
    workgroup: int | None
    condition: str = ""
    number: int = 0
    hits: int = 0


def resolved(
    place: str, launch: dict[str, Any], wave: int, workgroup: int | None, condition: str = ""
) -> Watch:
    """A place of the stopped launch, as described by its event, and of a wave of a (linear) workgroup, None before a wave has begun.
    ValueError for an invalid place.
    """
    size, request = _bytes_of(place.split(), launch, wave)
    is_memory = request.startswith("memory")
    if not is_memory and workgroup is None:
        raise ValueError(f"{place}: no wave has stopped; before a launch and after it there is memory alone")
    return Watch(
        " ".join(place.split()),
        size,
        request,
        launch["launch"],
        None if is_memory else workgroup,
        condition,
    )


def _bytes_of(words: list[str], launch: dict[str, Any], wave: int) -> tuple[int, str]:
    place = " ".join(words)
    first = words[0] if words else ""
    if first in ("lds", "memory") and len(words) == 3:
        begin, size = _numbers(place, words[1:])
        return size, f"{first} {begin} {size}"
    tensors = {
        region["name"]: region for region in reversed(launch["regions"]) if not region["is_own"]
    }  # the first of two with one name
    if first in tensors and len(words) in (1, 3):
        tensor = tensors[first]
        offset, size = _numbers(place, words[1:]) if len(words) == 3 else (0, tensor["bytes"])
        if offset + size > tensor["bytes"]:
            raise ValueError(f"{place}: {first} has {tensor['bytes']} bytes")
        return size, f"memory {tensor['begin'] + offset} {size}"
    of_kind = {"v": 0, "a": launch["accum_offset"]}  # in the unified file
    if register := _REGISTER.match(place):
        number = of_kind[register["kind"]] + int(register["number"])
        if register["lane"] is not None:
            return 4, f"lane {wave} {number} {int(register['lane'])}"
        return 256, f"vector {wave} {number} 1"
    if registers := _RANGE.match(place):
        begin, end = int(registers["first"]), int(registers["last"])
        if begin < end:
            return 256 * (end - begin), f"vector {wave} {of_kind[registers['kind']] + begin} {end - begin}"
    raise ValueError(f"{place!r} cannot be watched; allowed: {_ALLOWED}")


def _numbers(place: str, words: list[str]) -> tuple[int, int]:
    try:
        first, size = (int(word, 0) for word in words)
    except ValueError:
        raise ValueError(f"{place!r}: {' '.join(words)} are no two numbers") from None
    if first < 0 or size < 1:
        raise ValueError(f"{place!r}: a place and at least one byte are wanted")
    return first, size


def describe(changes: list[dict[str, Any]], watches: dict[int, Watch]) -> str:
    """The event's changes, one line each."""
    return "\n".join(
        f"{watches[change['watch']].place}: bytes from {change['offset']}: {change['before']} became {change['after']}"
        for change in changes
    )


def changes_of(text: str) -> list[dict[str, Any]]:
    """What a stop for watched bytes reports: each watch that changed, where, and its bytes there before and after."""
    return json.loads(text)
