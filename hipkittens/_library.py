# SPDX-License-Identifier: MIT
"""The shared libraries and the code objects of this installation, and what Python tells them."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import logging
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import _log
from ._log import log
from ._pack import Pack

TARGETS = ("gfx942", "gfx950")
_HERE = Path(__file__).resolve().parent
OPERATORS = _HERE / "lib" / "_ops.so"
SIMULATOR = _HERE / "lib" / "libhipkittens_simulator.so"


@functools.cache
def pack(target: str) -> Pack:
    return Pack(_HERE / "_kernels" / f"{target}.hkpack")


def require_whole(library: Path) -> None:
    """OSError if the file ends before its section table does: the dynamic linker would map it, and the process die of SIGBUS."""
    with library.open("rb") as file:
        header = file.read(64)
        size = os.fstat(file.fileno()).st_size
    if len(header) < 64 or not header.startswith(b"\x7fELF"):
        return  # the dynamic linker refuses it
    (table,) = struct.unpack_from("<Q", header, 0x28)
    entry_bytes, entries = struct.unpack_from("<HH", header, 0x3A)
    if size < table + entry_bytes * entries:
        raise OSError(f"{library.name} has {size} bytes of {table + entry_bytes * entries}")


def why_not_loaded(error: OSError) -> str:
    """What the dynamic linker's complaint about _ops.so comes from, and what to do."""
    text = str(error.__cause__ or error)  # torch wraps it
    if not OPERATORS.exists():
        cause = "the file is not there; reinstall hipkittens (in a checkout: ./run build)"
    elif "GLIBC" in text:
        cause = "the wheel was built for a newer system; it needs glibc 2.34 and GCC 11's libstdc++, or later"
    elif "undefined symbol" in text:
        cause = "torch lacks a function of its stable ABI 2.10; upgrade torch, or repair its installation"
    elif "cannot open shared object file" in text:
        cause = "a library that it needs is missing; reinstall torch"
    else:
        cause = "the file is damaged, or not for this machine; reinstall hipkittens"
    return f"hipkittens: {OPERATORS} cannot be loaded: {cause} ({text})"


@functools.cache
def operators() -> ctypes.CDLL:
    library = ctypes.CDLL(str(OPERATORS))
    library.hipkittens_runtime_last_error.restype = ctypes.c_char_p
    library.hipkittens_runtime_hip_status.restype = ctypes.c_char_p
    library.hipkittens_torch_last_kernel.restype = ctypes.c_char_p
    library.hipkittens_torch_set_before_launch.argtypes = [ctypes.c_void_p]
    return library


@functools.cache
def _simulator_control() -> Any:
    """The module _simulator; its library is opened with the first simulated launch, or setting or report asked for."""
    from . import _simulator

    operators().hipkittens_torch_set_before_launch(ctypes.c_void_p(_simulator.apply_settings_address()))
    _simulator.let_signals_through()
    return _simulator


def _before_exit() -> None:
    """Daemon threads that come out of a launch while the interpreter is taken down would abort the process."""
    if _simulator_control.cache_info().currsize and threading.active_count() > 1:
        _simulator_control().process_is_ending()
        time.sleep(0.05)  # those that are out of it and wait for the interpreter come to their next one


def _is_simulator_open() -> bool:
    try:
        ctypes.CDLL(str(SIMULATOR), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def interruption(error: Exception) -> BaseException | None:
    """What a signal's handler raised, if it so ended the launch that `error` is of; once. KeyboardInterrupt, for one."""
    if "interrupted by a signal" not in str(error) or not _simulator_control.cache_info().currsize:
        return None
    return _simulator_control().take_interruption()


_SOURCE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)


@_SOURCE
def _code_object_source(target: bytes, kernel: bytes) -> int:
    """Answers the runtime, which asks for a kernel when it is first launched."""
    library = operators()
    try:
        if _is_simulator_open():
            _simulator_control()  # lets signals through to launches
        chosen = pack(target.decode())
        image = chosen.image(chosen.entry(kernel.decode()))
    except KeyError:
        library.hipkittens_runtime_refuse(b"the pack of " + target + b" has no kernel " + kernel)
        return 1
    except Exception as error:
        library.hipkittens_runtime_refuse(str(error).encode())
        return 1
    _say_where(target.decode())
    log.debug("loading %s for %s: %d bytes, sha256 as built", kernel.decode(), target.decode(), len(image))
    return library.hipkittens_runtime_add_code_object(target, kernel, image, ctypes.c_uint64(len(image)))


def _say_where(target: str) -> None:
    from . import _backend

    if _backend.simulates_cpu_tensors():
        _log.once(logging.INFO, f"CPU tensors run in the simulator, as on a {target}")


def connect(arch: str) -> None:
    """Tells the operators where code objects come from and which target is simulated. Opens nothing yet."""
    operators().hipkittens_runtime_set_code_object_source(_code_object_source)
    atexit.register(_before_exit)
    _set_simulated_arch(arch)


def _set_simulated_arch(arch: str) -> None:
    if operators().hipkittens_torch_set_simulated_arch(arch.encode()):
        raise ValueError(f"hipkittens: simulated arch '{arch}'; allowed: {', '.join(TARGETS)}")


def apply_simulator_settings() -> None:
    """Hands the settings of the process to this thread, whose launch of its own they are to hold for."""
    _simulator_control().apply_settings()


def simulator_settings() -> dict[str, Any]:
    return _simulator_control().get_settings()


def configure_simulator(arch: str, settings: dict[str, Any]) -> None:
    _simulator_control().set_settings(settings)
    operators().hipkittens_torch_set_prefill(settings["poison"])
    _set_simulated_arch(arch)


def take_findings() -> str:
    """JSON of what the checkers found in this process since the last call."""
    control = _simulator_control()
    text = control.findings()
    control.clear_findings()
    return text


def clear_findings() -> None:
    _simulator_control().clear_findings()


def last_report() -> dict[str, Any]:
    return _simulator_control().last_report()


def last_kernel() -> str:
    """The kernel that this thread's last operator launched first, or ''."""
    return operators().hipkittens_torch_last_kernel().decode()


def hip_status() -> dict[str, Any]:
    """What was found of HIP in this machine: the library, its devices, or why there are none."""
    return json.loads(operators().hipkittens_runtime_hip_status())


def code(image: bytes) -> Iterator[tuple[int, bytes]]:
    """(address, bytes) of each executable section of an ELF64 code object."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry_bytes, count = struct.unpack_from("<HH", image, 0x3A)
    for number in range(count):
        _, kind, flags, address, offset, size = struct.unpack_from(
            "<IIQQQQ", image, table + number * entry_bytes
        )
        if kind == 1 and flags & 4:  # SHT_PROGBITS, SHF_EXECINSTR
            yield address, image[offset : offset + size]


def disassembled(target: str, address: int, code: bytes) -> Iterator[tuple[int, bytes, str]]:
    """(address, bytes, text) of each instruction; bytes that are none are a `.long`."""
    from . import _simulator

    at = 0
    while at < len(code):
        length, text = _simulator.disassemble(int(target.removeprefix("gfx")), code[at : at + 16])
        if length == 0:
            length, text = 4, f".long 0x{int.from_bytes(code[at : at + 4], 'little'):08x}"
        yield address + at, code[at : at + length], text
        at += length
