# SPDX-License-Identifier: MIT
"""Runs two programs in parallel to the first launch after which memory differs: two kernels, two targets, two versions of a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .process import DebuggedProcess
from .register_values import dtype_named
from .session import Exit, Session, Stop

_PIECE = 1 << 22  # bytes of memory in one answer


@dataclasses.dataclass(frozen=True)
class Difference:
    """A tensor whose elements differ: `count` of them, the first at `index`, with the element's bytes there."""

    tensor: str
    is_written: bool
    elements: int
    count: int
    index: int
    here: int | float
    there: int | float
    largest: float | None  # of |here - there|, for types that can be subtracted
    itemsize: int

    @property
    def text(self) -> str:
        def shown(value: int | float) -> str:
            return f"{value:#x}" if isinstance(value, int) and self.largest is None else f"{value:.9g}"

        largest = "" if self.largest is None else f"; by {self.largest:.4g} at most"
        read = "" if self.is_written else " (only read here: it differed before)"
        return (
            f"{self.tensor}{read}: {self.count} of {self.elements} elements differ{largest}; "
            f"the first is {self.index}: {shown(self.here)}, there {shown(self.there)}"
        )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The state of a comparison: both programs are at the end of their launch `launch`, or have ended.

    differences    of the launch's tensors; empty if the programs have ended, or one of them has stopped before a launch's end
    unmatched      names of memory that only one of the two launches has, or has in another size
    reached        of the two programs; None: the second one has not moved
    """

    launch: int
    differences: list[Difference]
    unmatched: list[str]
    reached: tuple[Stop | Exit, Stop | Exit | None]


class RunComparison:
    """Compares `session` and `other` launch by launch, in the order in which each launches.

    restart    starts the two programs again, for writer()
    """

    def __init__(
        self, session: Session, other: Session, restart: Callable[[], tuple[DebuggedProcess, DebuggedProcess]]
    ) -> None:
        self.session, self.other = session, other
        other.stops_at_findings = False
        self._restart = restart
        self._launches = 0
        self._found: Difference | None = None

    def run(self, tensor: str | None = None, dtype: str | None = None, tolerance: float = 0.0) -> Outcome:
        """Runs to the end of the next launch that leaves different memory, or has memory that the other one does not have.

        tensor       the tensor to compare; None: all that the launches have under the same name
        dtype        the type of an element (register_values.DTYPES); None: a dword
        tolerance    elements differ by more than this times the tensor's largest magnitude; NaN equals NaN

        ValueError for an unknown dtype, and for a tensor that no launch had.
        """
        kind = torch.uint32 if dtype is None else dtype_named(dtype)
        seen = False
        while True:
            with self.session.stopping_at(ends=True), self.other.stopping_at(ends=True):
                here = self.session.go_on()
                if not _is_end(here) and not isinstance(here, Exit):
                    return Outcome(self._launches, [], [], (here, None))
                there = self.other.go_on()
            if isinstance(here, Exit) or isinstance(there, Exit) or not _is_end(there):
                if tensor is not None and not seen:
                    raise ValueError(f"no launch had memory called {tensor!r}")
                return Outcome(self._launches, [], [], (here, there))
            self._launches += 1
            found, unmatched = [], []
            for name, ours, theirs in self._pairs(tensor):
                seen = True
                if ours is None or theirs is None or ours["bytes"] != theirs["bytes"]:
                    unmatched.append(name)
                    continue
                difference = difference_of(
                    name, ours["writable"], _read(self.session, ours), _read(self.other, theirs), kind, tolerance
                )  # fmt: skip
                found += [difference] if difference else []
            if found or unmatched:
                self._found = next((each for each in found if each.is_written), None)
                return Outcome(self._launches, found, unmatched, (here, there))

    def _pairs(self, tensor: str | None) -> Iterator[tuple[str, dict | None, dict | None]]:
        """The two launches' memory of the same name; several of one name in the order of their addresses."""
        sides = []
        for session in (self.session, self.other):
            named: dict[tuple[str, int], dict] = {}
            for region in session.launch.tensors:
                if tensor is None or region["name"] == tensor:
                    occurrence = sum(name == region["name"] for name, _ in named)
                    named[region["name"], occurrence] = region
            sides.append(named)
        for key in sides[0] | sides[1]:
            yield key[0], sides[0].get(key), sides[1].get(key)

    def writer(self) -> tuple[Stop, Stop]:
        """Starts both programs again, and stops each at the wave that writes the final value of the first differing element.

        ValueError if no written tensor was found to differ, or a program is not reproducible.
        """
        if self._found is None:
            raise ValueError("`compare` has found no written tensor that differs")
        element = self._found
        if sum(region["name"] == element.tensor for region in self.session.launch.tensors) > 1:
            raise ValueError(f"the launch has several memories called {element.tensor!r}")
        finals = [self._element(session, element) for session in (self.session, self.other)]
        launch = self._launches
        for session, process in zip((self.session, self.other), self._restart(), strict=True):
            session.start_again(process)
        self._launches = launch - 1  # `compare` continues with this launch
        self._found = None
        return tuple(
            self._to_value(session, launch, element, final)
            for session, final in zip((self.session, self.other), finals, strict=True)
        )

    def _element(self, session: Session, element: Difference) -> bytes:
        region = session.tensor(element.tensor)
        return session.memory(region["begin"] + element.index * element.itemsize, element.itemsize)

    def _to_value(self, session: Session, launch: int, element: Difference, final: bytes) -> Stop:
        begun = 0
        with session.stopping_at(launches=True):
            while begun < launch:
                reached = session.go_on()
                if isinstance(reached, Exit):
                    raise ValueError(
                        f"the program ended before its launch {launch}: it does not do the same twice; start the debugger again"
                    )
                begun += reached.moment == "begin"
        session.watch(f"{element.tensor} {element.index * element.itemsize} {element.itemsize}")
        last = None
        with session.stopping_at(ends=True):
            while not isinstance(reached := session.go_on(), Exit) and reached.has_waves:
                last = reached
                if reached.reason == "watch" and self._element(session, element) == final:
                    session.watch("")
                    return reached
        wanted = "keeps the value that it had" if last is None else "gets another value this time"
        raise ValueError(
            f"launch {launch}: element {element.index} of {element.tensor} {wanted}; start the debugger again"
        )


def _is_end(reached: Stop | Exit) -> bool:
    return isinstance(reached, Stop) and reached.moment == "end"


def _read(session: Session, region: dict[str, Any]) -> bytes:
    begin, size = region["begin"], region["bytes"]
    return b"".join(
        session.memory(begin + first, min(_PIECE, size - first)) for first in range(0, size, _PIECE)
    )


def difference_of(
    name: str, is_written: bool, here: bytes, there: bytes, kind: torch.dtype, tolerance: float
) -> Difference | None:
    """The difference between a tensor's bytes in two launches, with elements of type `kind`; None if all are within `tolerance`.

    Bytes that are not a whole number of elements are compared one by one.
    """
    if here == there:
        return None
    size = kind.itemsize
    if len(here) % size:
        kind, size = torch.uint8, 1
    ours, theirs = (torch.frombuffer(bytearray(each), dtype=torch.uint8).view(kind) for each in (here, there))
    is_float = kind.is_floating_point
    largest = None
    if is_float:
        a, b = ours.double(), theirs.double()
        apart = (a - b).abs()
        # Infinities of the same sign are equal; a NaN is equal to a NaN alone.
        apart[(a == b) | (a.isnan() & b.isnan())] = 0
        finite = b[b.isfinite()]
        allowed = tolerance * float(finite.abs().max()) if finite.numel() else 0.0
        differs = ~(apart <= allowed)
        largest = float(apart.nan_to_num(float("inf")).max())
    else:
        differs = (ours.view(torch.uint8) != theirs.view(torch.uint8)).view(-1, size).any(1)
    count = int(differs.sum())
    if count == 0:
        return None
    index = int(differs.nonzero()[0])
    values = [
        each[index : index + 1].double().item() if is_float else int.from_bytes(raw[index * size : (index + 1) * size], "little")
        for each, raw in ((ours, here), (theirs, there))
    ]  # fmt: skip
    return Difference(name, is_written, differs.numel(), count, index, *values, largest, size)
