# SPDX-License-Identifier: MIT
"""The simulator's controls, reports and disassembler: csrc/simulator/simulator.h, called through ctypes.

ctypes is used instead of an extension module so that nothing in a wheel depends on a version of Python. Operator calls do not go through
this module.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ._installation import SIMULATOR

HOST_LEVELS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
# isa::Unit, in its order.
UNITS = (
    "salu", "smem", "valu", "transcendental", "matrix", "lds", "vector_memory", "flat", "branch", "message", "internal",
)  # fmt: skip

_int, _u32, _u64, _text = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p


class Settings(ctypes.Structure):
    """HipkittensSettings: how launches are simulated."""

    _fields_ = (
        ("arithmetic", _int),
        ("host_level", _int),
        ("threads", _u32),
        ("wave_order_seed", _u64),
        ("poison", _int),
        ("count_lds_conflicts", _int),
        ("instruction_limit", _u64),
        ("wave_turn", _u32),
        ("workgroups_side_by_side", _u32),
        ("checks", _u32),
        ("tolerate_overreads", _int),
    )


class Report(ctypes.Structure):
    """HipkittensReport: the counters of a launch."""

    _fields_ = (
        ("instructions", _u64),
        ("workgroups", _u64),
        ("waves", _u64),
        ("mfma_instructions", _u64),
        ("valu_instructions", _u64),
        ("salu_instructions", _u64),
        ("lds_instructions", _u64),
        ("vector_memory_instructions", _u64),
        ("other_instructions", _u64),
        ("lds_conflict_cycles", _u64),
        ("seconds", ctypes.c_double),
    )


class Interpreter(ctypes.Structure):
    """HipkittensInterpreter: the functions of Python's C API by which a launch processes signals."""

    _fields_ = (
        ("enter", ctypes.c_void_p),
        ("leave", ctypes.c_void_p),
        ("run_signal_handlers", ctypes.c_void_p),
        ("take_error", ctypes.c_void_p),
    )


class InstructionRecord(ctypes.Structure):
    """HipkittensInstructionRecord: what one instruction did in a recorded launch."""

    _fields_ = (
        ("executions", _u64),
        ("bytes", _u64),
        ("lds_conflict_cycles", _u64),
        ("address", _u32),
        ("unit", _u32),
        ("vm_in_flight", _u32),
        ("lgkm_in_flight", _u32),
    )


class RegionRecord(ctypes.Structure):
    """HipkittensRegionRecord: what a recorded launch moved to and from one tensor."""

    _fields_ = (
        ("name", _text),
        ("bytes_loaded", _u64),
        ("bytes_stored", _u64),
        ("distinct_bytes_loaded", _u64),
        ("distinct_bytes_stored", _u64),
    )


class LaunchRecord(ctypes.Structure):
    """HipkittensLaunchRecord."""

    _fields_ = (
        ("kernel", _text),
        ("target", _int),
        ("report", Report),
        ("regions", ctypes.POINTER(RegionRecord)),
        ("region_count", ctypes.c_size_t),
        ("instructions", ctypes.c_void_p),
        ("instruction_count", ctypes.c_size_t),
        ("trace", ctypes.c_void_p),
        ("trace_words", ctypes.c_size_t),
        ("digests", ctypes.c_void_p),
        ("digest_count", ctypes.c_size_t),
    )


class Timing(ctypes.Structure):
    """HipkittensTiming: what to model launches on."""

    _fields_ = (
        ("device", _text),
        ("clock_mhz", ctypes.c_double),
        ("full", _int),
        ("timeline_compute_units", _u32),
        ("values", _int),
        ("names", ctypes.POINTER(_text)),
        ("overrides", ctypes.POINTER(ctypes.c_double)),
        ("override_count", ctypes.c_size_t),
        ("skip_others", _int),
    )


class TimelineEvent(ctypes.Structure):
    """HipkittensTimelineEvent: one instruction of a wave in the cycle model, or a wave's life."""

    _fields_ = (
        ("begin", ctypes.c_double),
        ("duration", ctypes.c_float),
        ("stalled", ctypes.c_float),
        ("latency", ctypes.c_float),
        ("address", _u32),
        ("workgroup", _u32),
        ("compute_unit", ctypes.c_uint16),
        ("lds_conflicts", ctypes.c_uint16),
        ("simd", ctypes.c_uint8),
        ("wave", ctypes.c_uint8),
        ("is_wave", ctypes.c_uint8),
        ("unit", ctypes.c_uint8),
        ("stall", _u32),
    )


_INSTRUCTION = struct.Struct("=QQQIIII")  # InstructionRecord; a launch may have thousands
_FLAGS = ("poison", "count_lds_conflicts", "tolerate_overreads")
_VISIT_CODE_OBJECT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _text, ctypes.c_void_p, ctypes.c_size_t)
_VISIT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _text, _text, _u64, _u64)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "hipkittens_set_process_settings": (_int, [ctypes.POINTER(Settings)]),
    "hipkittens_get_process_settings": (None, [ctypes.POINTER(Settings)]),
    "hipkittens_set_interpreter": (None, [ctypes.POINTER(Interpreter)]),
    "hipkittens_take_interruption": (_int, [ctypes.POINTER(ctypes.c_void_p * 3)]),
    "hipkittens_process_is_ending": (None, []),
    "hipkittens_best_host_level": (_int, []),
    "hipkittens_set_partitions": (_int, [_int]),
    "hipkittens_partitions": (_int, []),
    "hipkittens_last_error": (_text, []),
    "hipkittens_last_report": (None, [ctypes.POINTER(Report)]),
    "hipkittens_record_launches": (None, [_int]),
    "hipkittens_recorded_launches": (ctypes.c_size_t, []),
    "hipkittens_recorded_launch": (_int, [ctypes.c_size_t, ctypes.POINTER(LaunchRecord)]),
    "hipkittens_limit_kept_programs": (_u64, [_u64]),
    "hipkittens_kept_program_bytes": (_u64, []),
    "hipkittens_describe_launches": (None, [_int]),
    "hipkittens_described_launches": (ctypes.c_size_t, [_text, ctypes.c_size_t]),
    "hipkittens_findings": (ctypes.c_size_t, [_text, ctypes.c_size_t]),
    "hipkittens_clear_findings": (None, []),
    "hipkittens_kept_findings": (ctypes.c_size_t, [_text, ctypes.c_size_t]),
    "hipkittens_time_launches": (_int, [ctypes.POINTER(Timing)]),
    "hipkittens_timed_launches": (ctypes.c_size_t, [_text, ctypes.c_size_t]),
    "hipkittens_skipped_launches": (ctypes.c_size_t, []),
    "hipkittens_timeline": (ctypes.c_void_p, [ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]),
    "hipkittens_timing_parameters": (ctypes.c_size_t, [_text, _text, ctypes.c_size_t]),
    "hipkittens_disassemble": (_int, [_int, _text, ctypes.c_size_t, _text, ctypes.c_size_t]),
    "hipkittens_survey": (_int, [_int, _text, ctypes.c_size_t, _VISIT, ctypes.c_void_p]),
    "hipkittens_bundled_code_objects": (_int, [_text, ctypes.c_size_t, _VISIT_CODE_OBJECT, ctypes.c_void_p]),
}


@functools.cache
def _simulator() -> ctypes.CDLL:
    library = ctypes.CDLL(str(SIMULATOR))
    for name, (result, parameters) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    return library


def _values(structure: ctypes.Structure) -> dict[str, Any]:
    return {name: getattr(structure, name) for name, *_ in structure._fields_}


def _text_of(function: Callable[..., int], *arguments: Any) -> str:
    """The text written by a function that takes (..., text, size) and returns the length of the whole text."""
    size = function(*arguments, None, 0) + 1
    text = ctypes.create_string_buffer(size)
    function(*arguments, text, size)
    return text.value.decode()


def get_settings() -> dict[str, Any]:
    """Settings of this process's later launches."""
    settings = Settings()
    _simulator().hipkittens_get_process_settings(settings)
    values = _values(settings)
    return values | {name: bool(values[name]) for name in _FLAGS}


def set_settings(values: Mapping[str, Any]) -> None:
    """Changes the named settings of this process's later launches, or raises and changes none.

    KeyError for an unknown setting, ValueError for an invalid value.
    """
    settings = Settings()
    _simulator().hipkittens_get_process_settings(settings)
    known = {name for name, *_ in settings._fields_}
    for name, value in values.items():
        if name not in known:
            raise KeyError(f"no simulator setting is called {name}")
        setattr(settings, name, value)
        if getattr(settings, name) != value:
            raise ValueError(f"the simulator's setting {name} is {value}, which is out of range")
    if _simulator().hipkittens_set_process_settings(settings):
        raise ValueError(last_error())


def partitions() -> int:
    """The number of equal parts into which each device is partitioned."""
    return _simulator().hipkittens_partitions()


def set_partitions(count: int) -> None:
    """Partitions each device of this process into this many equal parts: 1, 2, 4 or 8, otherwise ValueError."""
    if _simulator().hipkittens_set_partitions(count):
        raise ValueError(last_error())


def apply_settings() -> None:
    """Applies the process's settings to this thread, for launches that no operator makes."""
    _simulator().hipkittens_apply_process_settings()


def apply_settings_address() -> int:
    """Address of the function that applies the process's settings to the calling thread: void (*)(void)."""
    function = _simulator().hipkittens_apply_process_settings
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def let_signals_through() -> None:
    """From now on a long launch of the main thread runs signal handlers, and ends if one of them raises."""
    api = ctypes.pythonapi
    functions = (api.PyGILState_Ensure, api.PyGILState_Release, api.PyErr_CheckSignals, api.PyErr_Fetch)
    addresses = (ctypes.cast(function, ctypes.c_void_p) for function in functions)
    _simulator().hipkittens_set_interpreter(Interpreter(*addresses))


def take_interruption() -> BaseException | None:
    """The exception of the signal handler that ended a launch since the last call."""
    error = (ctypes.c_void_p * 3)()
    if not _simulator().hipkittens_take_interruption(error):
        return None
    kind, value, trace = (
        ctypes.cast(address, ctypes.py_object).value if address else None for address in error
    )
    for address in filter(None, error):
        ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(address))
    if not isinstance(value, BaseException):  # C code passes the class and its argument
        value = kind() if value is None else kind(value)
    return value.with_traceback(trace)


def process_is_ending() -> None:
    """From now on launches of all other threads do not return."""
    _simulator().hipkittens_process_is_ending()


def best_host_level() -> str:
    """The widest of HOST_LEVELS that this CPU and this build support."""
    return HOST_LEVELS[_simulator().hipkittens_best_host_level()]


def last_error() -> str:
    """The full text of this thread's last failure."""
    return _simulator().hipkittens_last_error().decode()


def last_report() -> dict[str, Any]:
    """Counters of this thread's last launch."""
    report = Report()
    _simulator().hipkittens_last_report(report)
    return _values(report)


def record_launches(on: bool, trace: bool = False, digests: bool = False) -> None:
    """Starts to record every launch of this process, discarding earlier records; or stops. A trace or digests may be recorded as well."""
    _simulator().hipkittens_record_launches((2 if trace else 3 if digests else 1) if on else 0)


def recorded_launches() -> list[dict[str, Any]]:
    """The recorded launches, each with

    kernel, target  names
    report          as last_report
    regions         (name, bytes loaded, bytes stored, distinct bytes loaded, distinct bytes stored) of each tensor
    instructions    (address, unit, executions, bytes, LDS conflict cycles) of each instruction that was executed
    waits           (address, vmcnt, lgkmcnt): the largest counters with which each s_waitcnt was reached, if any
    trace, digests  bytes, see hipkittens_record_launches in simulator.h
    """
    return [_recorded_launch(index) for index in range(_simulator().hipkittens_recorded_launches())]


def _recorded_launch(index: int) -> dict[str, Any]:
    record = LaunchRecord()
    if _simulator().hipkittens_recorded_launch(index, record):
        raise RuntimeError(last_error())
    rows = ctypes.string_at(record.instructions or 0, record.instruction_count * _INSTRUCTION.size)
    instructions, waits = [], []
    for executions, moved, conflicts, address, unit, vm, lgkm in _INSTRUCTION.iter_unpack(rows):
        instructions.append((address, UNITS[unit], executions, moved, conflicts))
        if vm or lgkm:
            waits.append((address, vm, lgkm))
    regions = []
    for region in record.regions[: record.region_count]:
        name, *amounts = _values(region).values()
        regions.append((name.decode(), *amounts))
    return {
        "kernel": record.kernel.decode(),
        "target": f"gfx{record.target}",
        "report": _values(record.report),
        "regions": regions,
        "instructions": instructions,
        "waits": waits,
        "trace": ctypes.string_at(record.trace or 0, record.trace_words * 4),
        "digests": ctypes.string_at(record.digests or 0, record.digest_count * 8),
    }


def limit_kept_programs(size: int) -> int:
    """Limits the memory in bytes for translations of kernels that this process keeps, the most recently used ones; 512 MiB by default.
    Returns the previous limit.
    """
    return _simulator().hipkittens_limit_kept_programs(size)


def kept_program_bytes() -> int:
    """The memory in bytes that they use."""
    return _simulator().hipkittens_kept_program_bytes()


@contextlib.contextmanager
def described_launches() -> Iterator[list[dict[str, Any]]]:
    """Context manager: launches of this process are checked, and then described instead of run: kernel, grid, block, dynamic_lds_bytes and
    arguments, in which addresses are tensor numbers with offsets. The list is filled when the context has ended.
    """
    found: list[dict[str, Any]] = []
    _simulator().hipkittens_describe_launches(1)
    try:
        yield found
    finally:
        _simulator().hipkittens_describe_launches(0)
        found += json.loads(_text_of(_simulator().hipkittens_described_launches))


def findings() -> str:
    """JSON array of the checkers' findings since clear_findings."""
    return _text_of(_simulator().hipkittens_findings)


def kept_findings() -> str:
    """JSON array of the checkers' findings in this process, under HIPKITTENS_CHECKS; empty if no simulator was opened."""
    return _text_of(_simulator().hipkittens_kept_findings) if _simulator.cache_info().currsize else "[]"


def clear_findings() -> None:
    _simulator().hipkittens_clear_findings()


def time_launches(timing: Timing | None) -> None:
    """Models later launches of this process and discards earlier reports; None ends it. ValueError describes what is wrong."""
    if _simulator().hipkittens_time_launches(timing):
        raise ValueError(last_error())


def timed_launches() -> str:
    """JSON array of the modelled launches."""
    return _text_of(_simulator().hipkittens_timed_launches)


def skipped_launches() -> int:
    """How many launches ran without a report since the last `time_launches`, because of Timing.skip_others."""
    return _simulator().hipkittens_skipped_launches()


def timeline(launch: int) -> ctypes.Array[TimelineEvent]:
    """Events of a modelled launch, if they were requested."""
    count = ctypes.c_size_t()
    address = _simulator().hipkittens_timeline(launch, count)
    events = TimelineEvent * count.value
    return (
        events.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(events))) if count.value else events()
    )


def timing_parameters(device: str) -> str:
    """JSON of the cycle model's parameters for one device; empty if there is no such device."""
    return _text_of(_simulator().hipkittens_timing_parameters, device.encode())


_DISASSEMBLED = ctypes.c_char * 512


def disassemble(target: int, code: bytes) -> tuple[int, str | None]:
    """(bytes used, text) of the instruction at the start of code; (0, None) if there is none. target: 942 or 950."""
    text = _DISASSEMBLED()
    length = _simulator().hipkittens_disassemble(target, code, len(code), text, len(text))
    return length, text.value.decode() if length else None


def survey(target: int, code: bytes) -> dict[str, tuple[str, int, int]]:
    """{mnemonic: (row, count, implemented)} of the instructions in code. target: 942 or 950."""
    result: dict[str, tuple[str, int, int]] = {}

    def visit(_: int | None, mnemonic: bytes, row: bytes, count: int, implemented: int) -> None:
        result[mnemonic.decode()] = (row.decode(), count, implemented)

    if _simulator().hipkittens_survey(target, code, len(code), _VISIT(visit), None):
        raise ValueError(last_error())
    return result


def bundled_code_objects(file: bytes) -> dict[str, bytes]:
    """The code objects for GPUs in an offload bundle, plain or compressed, by the names of its entries. ValueError if it is not a bundle."""
    result: dict[str, bytes] = {}

    def visit(_: int | None, name: bytes, code_object: int, size: int) -> None:
        result[name.decode()] = ctypes.string_at(code_object, size)

    if _simulator().hipkittens_bundled_code_objects(file, len(file), _VISIT_CODE_OBJECT(visit), None):
        raise ValueError(last_error())
    return result
