"""The simulator as tests see it: libhipkittens_simulator.so through ctypes, with no package code in between."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

TARGETS = ("gfx942", "gfx950")
ARITHMETIC = {"fast": 0, "strict": 1, "exact": 2}
HOST_LEVELS = {"best": -1, "portable": 0, "avx2": 1, "avx512": 2, "avx512_bf16": 3, "amx": 4}


class Region(ctypes.Structure):
    _fields_ = [
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("writable", ctypes.c_int),
        ("unwritten", ctypes.c_uint32),
    ]


class Settings(ctypes.Structure):
    _fields_ = [("arithmetic", ctypes.c_int), ("host_level", ctypes.c_int), ("threads", ctypes.c_uint32),
                ("wave_order_seed", ctypes.c_uint64), ("poison", ctypes.c_int), ("count_lds_conflicts", ctypes.c_int),
                ("instruction_limit", ctypes.c_uint64), ("wave_turn", ctypes.c_uint32),
                ("workgroups_side_by_side", ctypes.c_uint32), ("checks", ctypes.c_uint32),
                ("tolerate_overreads", ctypes.c_int)]  # fmt: skip


class Report(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_uint64) for name in (
        "instructions", "workgroups", "waves", "mfma_instructions", "valu_instructions", "salu_instructions",
        "lds_instructions", "vector_memory_instructions", "other_instructions", "lds_conflict_cycles")),
        ("seconds", ctypes.c_double)]  # fmt: skip


CHECKERS = {"memcheck": 1, "racecheck": 2, "initcheck": 4, "synccheck": 8, "notes": 16}
ALL_CHECKS = 31


class SimulatorError(Exception):
    """A launch or a load failed; the text is the simulator's own."""


def library_path() -> pathlib.Path:
    if override := os.environ.get("HIPKITTENS_SIMULATOR_LIBRARY"):
        return pathlib.Path(override)
    spec = importlib.util.find_spec("hipkittens")
    assert spec and spec.origin, "hipkittens is not installed"
    return pathlib.Path(spec.origin).parent / "lib" / "libhipkittens_simulator.so"


_other_path: pathlib.Path | None = None


@contextlib.contextmanager
def using(path: pathlib.Path | None) -> Iterator[None]:
    """Context in which loaded modules belong to the simulator at `path`, and always launch in it; None: the usual one."""
    global _other_path
    before, _other_path = _other_path, path
    try:
        yield
    finally:
        _other_path = before


def library() -> ctypes.CDLL:
    return _opened(_other_path or library_path())


@functools.cache
def _opened(path: pathlib.Path) -> ctypes.CDLL:
    handle = ctypes.CDLL(str(path))
    handle.hipkittens_last_error.restype = ctypes.c_char_p
    handle.hipkittens_last_report.restype = None
    handle.hipkittens_get_settings.restype = None
    handle.hipkittens_clear_findings.restype = None
    handle.hipkittens_instructions_so_far.restype = ctypes.c_uint64
    return handle


def _check(status: int, what: str, lib: ctypes.CDLL) -> None:
    if status != 0:
        raise SimulatorError(f"{what}: hip error {status}: {lib.hipkittens_last_error().decode()}")


def take_findings() -> list[dict]:
    """The checkers' findings since the last call, as simulator.h describes them; notes included."""
    lib = library()
    lib.hipkittens_findings.restype = ctypes.c_size_t
    buffer = ctypes.create_string_buffer(lib.hipkittens_findings(None, ctypes.c_size_t(0)) + 1)
    lib.hipkittens_findings(buffer, ctypes.c_size_t(len(buffer)))
    lib.hipkittens_clear_findings()
    return json.loads(buffer.value)


@dataclasses.dataclass
class Kernel:
    """One kernel of a loaded code object."""

    function: ctypes.c_void_p
    module: Module

    def launch(
        self,
        arguments: bytes,
        regions: Mapping[str, np.ndarray] | None = None,
        *,
        grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (64, 1, 1),
        shared_bytes: int = 0,
        read_only: Sequence[str] = (),
        unwritten: Mapping[str, int] | None = None,
        **settings,
    ) -> Report:
        """Run the kernel; it may access exactly `regions`. Settings by name: arithmetic, host_level, threads, ..."""
        lib = self.module.library
        chosen = Settings()
        lib.hipkittens_get_settings(ctypes.byref(chosen))
        before = Settings.from_buffer_copy(chosen)
        for name, value in settings.items():
            value = ARITHMETIC.get(value, value) if name == "arithmetic" else value
            value = HOST_LEVELS.get(value, value) if name == "host_level" else value
            setattr(chosen, name, value)
        regions = regions or {}
        table = (Region * max(1, len(regions)))()
        for row, (name, array) in zip(table, regions.items(), strict=False):
            row.begin, row.bytes = array.ctypes.data, array.nbytes
            row.name, row.writable = name.encode(), name not in read_only
            row.unwritten = (unwritten or {}).get(name, 0)
        triple = ctypes.c_uint * 3
        _check(lib.hipSetDevice(self.module.device), "hipSetDevice", lib)
        _check(lib.hipkittens_set_settings(ctypes.byref(chosen)), "settings", lib)
        try:
            _check(lib.hipkittens_launch_bounded(
                self.function, triple(*(*grid, 1, 1)[:3]), triple(*(*block, 1, 1)[:3]), ctypes.c_uint(shared_bytes), None,
                arguments, ctypes.c_size_t(len(arguments)), table, ctypes.c_size_t(len(regions))), "launch", lib)  # fmt: skip
        finally:
            lib.hipkittens_set_settings(ctypes.byref(before))
        report = Report()
        lib.hipkittens_last_report(ctypes.byref(report))
        return report


class Module:
    """A code object loaded into the simulated device of `target`."""

    def __init__(self, code: bytes, target: str):
        self.device = TARGETS.index(target)
        self.library = library()
        self._handle = ctypes.c_void_p()
        _check(self.library.hipSetDevice(self.device), "hipSetDevice", self.library)
        _check(
            self.library.hipModuleLoadData(ctypes.byref(self._handle), code),
            "hipModuleLoadData",
            self.library,
        )

    def kernel(self, name: str) -> Kernel:
        function = ctypes.c_void_p()
        _check(
            self.library.hipModuleGetFunction(ctypes.byref(function), self._handle, name.encode()),
            "hipModuleGetFunction",
            self.library,
        )
        return Kernel(function, self)

    def __del__(self):
        if self._handle:
            self.library.hipModuleUnload(self._handle)


def pointers(*values: np.ndarray | int | float) -> bytes:
    """Kernel arguments: arrays as 64-bit pointers, ints as 32 bits, floats as f32, each naturally aligned."""
    packed = b""
    for value in values:
        if isinstance(value, np.ndarray):
            piece = int(value.ctypes.data).to_bytes(8, "little")
        elif isinstance(value, float):
            piece = np.float32(value).tobytes()
        else:
            piece = (value & 0xFFFFFFFF).to_bytes(4, "little")
        packed += b"\0" * (-len(packed) % len(piece)) + piece
    return packed
