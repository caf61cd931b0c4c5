# SPDX-License-Identifier: MIT
"""The definition of a fact, and a device's answer."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .._installation import TARGETS

if TYPE_CHECKING:
    from ._device import Device

AGREE, DIFFER, FAILED = "agree", "differ", "failed"
MEASURED, NOT_SHOWN = "measured", "needs a GPU"

Value = torch.Tensor | Mapping[str, Any]
_WHOLE = 64  # tensors with up to this many elements are listed in a report; longer ones as packed bytes
_SHOWN = 16  # mismatches that are listed


@dataclass(frozen=True, eq=False)
class Fact:
    """One fact that is relied on without a document that settles it.

    name       of the fact, for --only
    statement  what is assumed; for a fact without `expected` what is measured
    used_by    the files that rely on it, and what in them does, as text
    find       queries a device: a tensor, or words and numbers by name
    expected   what a device of a target has to answer, in the same form; None for what only a GPU can answer
    assumed    for a measured fact the cycle model's assumptions: from names in the result of `find` to value, unit and source
    targets    those that have what is queried
    """

    name: str
    statement: str
    used_by: tuple[str, ...]
    find: Callable[[Device], Value]
    expected: Callable[[str], Value] | None = None
    assumed: Callable[[Device], Mapping[str, Any]] | None = None
    targets: tuple[str, ...] = TARGETS


@dataclass
class Answer:
    """A device's answer for a fact.

    verdict    agree, differ; measured; needs a GPU: the simulator cannot answer; failed: the launch failed
    found, expected, assumed  as produced by to_json; if it agrees `found` is None, since it equals the expectation
    mismatches  the first of mismatch_count
    error      of a launch that failed
    notes      additional information
    findings   of the simulator's checkers, which find nothing in a correct probe
    """

    fact: Fact
    verdict: str
    seconds: float = 0.0
    found: Any = None
    expected: Any = None
    assumed: Any = None
    mismatches: list[dict[str, Any]] = field(default_factory=list)
    mismatch_count: int = 0
    error: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.fact.name,
            "statement": self.fact.statement,
            "used_by": list(self.fact.used_by),
            "verdict": self.verdict,
            "expected": self.expected,
            "found": self.found,
            "assumed": self.assumed,
            "mismatch_count": self.mismatch_count,
            "mismatches": self.mismatches,
            "error": self.error,
            "notes": self.notes,
            "findings": self.findings,
            "seconds": round(self.seconds, 4),
        }


def to_json(value: Value) -> Any:
    """Numbers by name are kept. For a tensor: dtype, shape and elements; for a long one its bytes (zlib, base64)."""
    if not isinstance(value, torch.Tensor):
        return dict(value)
    described = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    if value.numel() <= _WHOLE:
        return described | {"elements": value.tolist()}
    data = bytes(value.contiguous().view(torch.uint8).flatten().tolist())
    return described | {"zlib_base64": base64.b64encode(zlib.compress(data, 9)).decode()}


def compare(fact: Fact, found: Value, expected: Value) -> Answer:
    """Bit-equal, or what differs. Tensors are integers: floats are compared by their bits."""
    answer = Answer(fact, AGREE, found=to_json(found), expected=to_json(expected))
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor) and not expected.is_floating_point()
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            raise ValueError(
                f"{fact.name}: found {found.dtype} {tuple(found.shape)}, expected {expected.dtype} {tuple(expected.shape)}"
            )
        places = (found != expected).nonzero().tolist()
        differing = [
            {"at": place, "expected": expected[tuple(place)].item(), "found": found[tuple(place)].item()}
            for place in places[:_SHOWN]
        ]
        answer.mismatch_count = len(places)
    else:
        differing = [
            {"at": name, "expected": expected.get(name), "found": found.get(name)}
            for name in dict.fromkeys([*expected, *found])
            if expected.get(name) != found.get(name)
        ]
        answer.mismatch_count = len(differing)
    answer.mismatches = differing
    if differing:
        answer.verdict = DIFFER
    else:
        answer.found = None
    return answer
