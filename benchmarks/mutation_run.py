# SPDX-License-Identifier: MIT
"""Repeats recorded launches with changed code, and reports the findings of the simulator and its checkers."""

from __future__ import annotations

import ctypes
import functools
import json
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import hipkittens
from hipkittens import _findings, _installation, _library, _simulator

# All checkers except the notes, which concern speed.
ERRORS = sum(bit for name, bit in _findings.CHECKERS.items() if name != "notes")
# Waves in index order up to the next barrier; in another order; interleaved, a few instructions at a time.
ORDERS: tuple[dict[str, int], ...] = (
    {"checks": ERRORS, "wave_order_seed": 0},
    {"checks": ERRORS, "wave_order_seed": 5},
    {"checks": ERRORS, "wave_order_seed": 3, "wave_turn": 24},
)
_PAGE = 4096


class _Region(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("name", ctypes.c_char_p),
                ("writable", ctypes.c_int), ("unwritten", ctypes.c_uint32)]  # fmt: skip


class _Observed(ctypes.Structure):
    _fields_ = [("kernel", ctypes.c_char_p), ("target", ctypes.c_int), ("grid", ctypes.POINTER(ctypes.c_uint)),
                ("block", ctypes.POINTER(ctypes.c_uint)), ("shared_bytes", ctypes.c_uint),
                ("arguments", ctypes.c_void_p), ("argument_bytes", ctypes.c_size_t),
                ("regions", ctypes.POINTER(_Region)), ("region_count", ctypes.c_size_t)]  # fmt: skip


class _Settings(ctypes.Structure):
    _fields_ = [("arithmetic", ctypes.c_int), ("host_level", ctypes.c_int), ("threads", ctypes.c_uint32),
                ("wave_order_seed", ctypes.c_uint64), ("poison", ctypes.c_int), ("count_lds_conflicts", ctypes.c_int),
                ("instruction_limit", ctypes.c_uint64), ("wave_turn", ctypes.c_uint32),
                ("workgroups_side_by_side", ctypes.c_uint32), ("checks", ctypes.c_uint32)]  # fmt: skip


_Observer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Observed))


class Fault(Exception):
    """A launch or a load failed; the text is the simulator's message."""


def _simulator_library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_installation.SIMULATOR))
    library.hipkittens_last_error.restype = ctypes.c_char_p
    library.hipkittens_get_settings.restype = None
    library.hipkittens_set_launch_observer.restype = None
    return library


def _require(status: int) -> None:
    if status:
        raise Fault(_simulator_library().hipkittens_last_error().decode())


@dataclass
class Region:
    name: str
    data: np.ndarray
    writable: bool
    before: np.ndarray


@dataclass
class Launch:
    """Everything a launch needs; its memory is a copy of the memory at the time of the launch."""

    kernel: str
    target: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    arguments: bytes
    regions: list[Region] = field(default_factory=list)

    def first_workgroups(self, count: int) -> None:
        """Keeps the first `count` workgroups, so that a few tiles of a problem that fills the device can be run alone."""
        grid = list(self.grid)
        for axis in (2, 1, 0):
            others = int(np.prod(grid[:axis]))
            grid[axis] = max(1, min(grid[axis], count // others))
        self.grid = tuple(grid)

    def share_among(self, workgroups: int, offset: int, size: int) -> None:
        """Sets the argument that counts workers, so that this many workgroups act as if they were all there are."""
        workers = int.from_bytes(self.arguments[offset : offset + size], "little")
        together = -(-workers // self.grid[0])
        fewer = min(workers, workgroups * together).to_bytes(size, "little")
        self.arguments = self.arguments[:offset] + fewer + self.arguments[offset + size :]

    def drop_untouched(self, loaded: Container[str]) -> None:
        """Truncates regions that are only written to the part that a run has changed. `loaded`: names of regions that are read."""
        for region in self.regions:
            if region.writable and region.name not in loaded:
                changed = np.flatnonzero(region.data != region.before)
                end = -(-(int(changed[-1]) + 1) // 64) * 64 if changed.size else 64
                region.data, region.before = region.data[:end], region.before[:end].copy()

    def run(self, image: bytes, **settings: int) -> dict[str, Any]:
        """Runs the code object and returns the report; the results are in the regions."""
        for region in self.regions:
            if region.writable:
                region.data[:] = region.before
        library = _simulator_library()
        device = _installation.TARGETS.index(self.target)
        _require(library.hipSetDevice(device))
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _require(library.hipModuleLoadData(ctypes.byref(module), image))
        before = _Settings()
        library.hipkittens_get_settings(ctypes.byref(before))
        chosen = _Settings.from_buffer_copy(before)
        chosen.threads, chosen.poison = 1, 1
        for name, value in settings.items():
            setattr(chosen, name, value)
        table = (_Region * len(self.regions))()
        for row, region in zip(table, self.regions, strict=True):
            row.begin, row.bytes = region.data.ctypes.data, region.data.nbytes
            row.name, row.writable = region.name.encode(), region.writable
        try:
            _require(library.hipModuleGetFunction(ctypes.byref(function), module, self.kernel.encode()))
            _require(library.hipkittens_set_settings(ctypes.byref(chosen)))
            triple = ctypes.c_uint * 3
            _require(
                library.hipkittens_launch_bounded(
                    function,
                    triple(*self.grid),
                    triple(*self.block),
                    ctypes.c_uint(self.shared_bytes),
                    None,
                    self.arguments,
                    ctypes.c_size_t(len(self.arguments)),
                    table,
                    ctypes.c_size_t(len(table)),
                )
            )
        finally:
            library.hipkittens_set_settings(ctypes.byref(before))
            library.hipModuleUnload(module)
        return _simulator.last_report()

    def results(self) -> list[np.ndarray]:
        return [region.data.copy() for region in self.regions if region.writable]


def capture(target: str, wanted: Iterable[str], call: Callable[[], Any], skip: bool) -> dict[str, Launch]:
    """The first launch of each of the kernels during `call`. skip: do not run any launch, for long problems."""
    return {kernel: first for kernel, (first,) in captures(target, wanted, call, skip, most=1).items()}


def captures(
    target: str, wanted: Iterable[str], call: Callable[[], Any], skip: bool, most: int
) -> dict[str, list[Launch]]:
    """Like `capture`, but the first `most` launches of each kernel."""
    names, found = frozenset(wanted), defaultdict(list)

    def observe(seen: Any) -> int:
        launch = seen.contents
        kernel = launch.kernel.decode()
        if kernel in names and len(found[kernel]) < most:
            found[kernel].append(_copied(launch))
        return int(skip)

    observer = _Observer(observe)
    with hipkittens.simulate(target, checks=True):
        _simulator_library().hipkittens_set_launch_observer(observer)
        try:
            call()
        finally:
            _simulator_library().hipkittens_set_launch_observer(None)
    missing = names - found.keys()
    if missing:
        raise LookupError(f"{target}: the problem does not run {', '.join(sorted(missing))}")
    return found


def _copied(seen: Any) -> Launch:
    regions = [seen.regions[index] for index in range(seen.region_count)]
    regions = [region for region in regions if region.bytes]
    # Regions may overlap: each group of overlapping ones moves as a whole.
    spans: list[list[int]] = []
    for begin, end in sorted((region.begin, region.begin + region.bytes) for region in regions):
        if spans and begin < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([begin, end])
    memory = {}
    for begin, end in spans:
        room = np.empty(end - begin + 2 * _PAGE, np.uint8)
        shift = (begin - room.ctypes.data) % _PAGE  # the same offset in a page
        data = room[shift : shift + end - begin]
        ctypes.memmove(data.ctypes.data, begin, end - begin)
        memory[begin, end] = data
    arguments = bytearray(ctypes.string_at(seen.arguments, seen.argument_bytes))
    for at in range(0, len(arguments) - 7, 8):
        value = int.from_bytes(arguments[at : at + 8], "little")
        for (begin, end), data in memory.items():
            if begin <= value < end:
                arguments[at : at + 8] = (data.ctypes.data + value - begin).to_bytes(8, "little")
    launch = Launch(seen.kernel.decode(), f"gfx{seen.target}", tuple(seen.grid[:3]), tuple(seen.block[:3]),
                    seen.shared_bytes, bytes(arguments))  # fmt: skip
    for region in regions:
        ((begin, _), data) = next(item for item in memory.items() if item[0][0] <= region.begin < item[0][1])
        part = data[region.begin - begin :][: region.bytes]
        launch.regions.append(Region(region.name.decode(), part, bool(region.writable), part.copy()))
    return launch


@dataclass
class Subject:
    """A kernel as shipped: its behavior in a launch, and how deviations from it are detected."""

    launch: Launch
    image: bytes
    executed: list[int] = field(init=False)
    in_flight: dict[int, dict[str, int]] = field(init=False)  # at waits: the largest counter values
    reads_what_it_writes: bool = field(init=False)  # in some region
    trace: bytes = field(init=False)  # of memory instructions, waits and barriers
    order: Any = field(init=False, default=None)  # mutation_order.Order, created on first use
    known: set = field(init=False)
    right: list[np.ndarray] = field(init=False)
    limit: int = field(init=False)

    def __post_init__(self) -> None:
        _take_findings()
        record = self._recorded(self.image, {"trace": True}, count_lds_conflicts=1)
        self.launch.drop_untouched({name for name, loaded, *_ in record["regions"] if loaded})
        self.reads_what_it_writes = any(loaded and stored for _, loaded, stored, *_ in record["regions"])
        self.trace = record["trace"]
        self.executed = [address for address, *_ in record["instructions"]]
        self.in_flight = {address: {"vmcnt": vm, "lgkmcnt": lgkm} for address, vm, lgkm in record["waits"]}
        self.right = self.launch.results()
        # The limit is per workgroup; a mutant that loops forever must end soon.
        self.limit = 4 * record["report"]["instructions"] + 10000
        self.known = set()
        for order in ORDERS:
            self.launch.run(self.image, **order)
            self.known |= {_key(finding) for finding in _take_findings()}
            if not self._is_right():
                raise AssertionError(f"{self.launch.kernel}: other results as shipped with {order}")

    def _recorded(self, image: bytes, more: dict[str, bool], **settings: int) -> dict[str, Any]:
        """The record of a run, with the additional items to record."""
        _simulator.record_launches(True, **more)
        try:
            self.launch.run(image, **settings)
            (record,) = _simulator.recorded_launches()
        finally:
            _simulator.record_launches(True)  # releases the record
            _simulator.record_launches(False)
        return record

    def _is_right(self) -> bool:
        written = (region.data for region in self.launch.regions if region.writable)
        return all(np.array_equal(now, before) for now, before in zip(written, self.right, strict=True))

    def noticed(self, image: bytes) -> str | None:
        """What notices that this is not the kernel's own code: "fault", the name of a checker, or else "result".

        "result" is the bitwise comparison with the shipped kernel's results, which a user does not have. It is made last, when no order
        of the waves has ended in a fault or a finding.
        """
        differs = False
        for order in ORDERS:
            _take_findings()
            try:
                self.launch.run(image, instruction_limit=self.limit, **order)
            except Fault:
                return "fault"
            for finding in _take_findings():
                if _key(finding) not in self.known:
                    return finding["checker"]
            differs |= not self._is_right()
        return "result" if differs else None

    @functools.cached_property
    def _found(self) -> tuple[bytes, list[bytes]]:
        return self._found_by(self.image)

    def _found_by(self, image: bytes) -> tuple[bytes, list[bytes]]:
        """Digests of the register values that each wave's instructions read, and the results."""
        record = self._recorded(image, {"digests": True}, instruction_limit=self.limit)
        return record["digests"], [result.tobytes() for result in self.launch.results()]

    def finds_the_same(self, image: bytes) -> bool:
        """Whether every instruction of this code reads the same register values as in the shipped code, and the results are the same."""
        return self._found_by(image) == self._found


def _take_findings() -> list[dict]:
    return [row for row in json.loads(_library.take_findings()) if row["checker"] != "notes"]


def _key(finding: dict) -> tuple:
    return (finding["kind"], *(party and party["offset"] for party in (finding["first"], finding["second"])))
