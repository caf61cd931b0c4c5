# SPDX-License-Identifier: MIT
"""The interface between Python and the operators and simulator libraries."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from . import _installation, _log
from ._log import log


@functools.cache
def operators() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_installation.OPERATORS))
    library.hipkittens_runtime_last_error.restype = ctypes.c_char_p
    library.hipkittens_runtime_hip_status.restype = ctypes.c_char_p
    library.hipkittens_torch_last_kernel.restype = ctypes.c_char_p
    library.hipkittens_torch_set_before_launch.argtypes = [ctypes.c_void_p]
    return library


@functools.cache
def _simulator_control() -> Any:
    """The module _simulator; its library is opened by the first simulated launch, or the first setting or report."""
    from . import _simulator

    operators().hipkittens_torch_set_before_launch(ctypes.c_void_p(_simulator.apply_settings_address()))
    _simulator.let_signals_through()
    return _simulator


def _before_exit() -> None:
    """Daemon threads that return from a launch while the interpreter is shutting down would abort the process."""
    if _simulator_control.cache_info().currsize and threading.active_count() > 1:
        _simulator_control().process_is_ending()
        time.sleep(0.05)  # threads that have left it and wait for the interpreter reach their next one


def _is_simulator_open() -> bool:
    try:
        ctypes.CDLL(str(_installation.SIMULATOR), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def interruption(error: Exception) -> BaseException | None:
    """What a signal's handler raised, if it ended the launch whose error is `error`; once. For example KeyboardInterrupt."""
    if _INTERRUPTED not in str(error):
        return None
    if raised := _raised_while_loading.__dict__.pop("error", None):
        return raised
    if not _simulator_control.cache_info().currsize:
        return None
    return _simulator_control().take_interruption()


_INTERRUPTED = "interrupted by a signal"
_raised_while_loading = threading.local()  # .error: what ctypes would print and discard
_SOURCE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
_kept: list[Any] = []  # what the runtime may call during the life of the process


def _give_code_object(simulates_cpu_tensors: Callable[[], bool], target: bytes, kernel: bytes) -> int:
    """Answers the runtime, which requests a kernel when it is first launched."""
    library = operators()
    try:
        if _is_simulator_open():
            _simulator_control()  # lets signals through to launches
        chosen = _installation.pack(target.decode())
        image = chosen.image(chosen.entry(kernel.decode()))
    except KeyError:
        library.hipkittens_runtime_refuse(
            _installation.why_no_kernel(target.decode(), kernel.decode()).encode()
        )
        return 1
    except Exception as error:
        library.hipkittens_runtime_refuse(str(error).encode())
        return 1
    except BaseException as error:
        _raised_while_loading.error = error
        library.hipkittens_runtime_refuse(_INTERRUPTED.encode())
        return 1
    if simulates_cpu_tensors():
        _log.once(logging.INFO, f"CPU tensors run in the simulator, as on a {target.decode()}")
    log.debug("loading %s for %s: %d bytes, sha256 as built", kernel.decode(), target.decode(), len(image))
    return library.hipkittens_runtime_add_code_object(target, kernel, image, ctypes.c_uint64(len(image)))


def connect(arch: str, simulates_cpu_tensors: Callable[[], bool]) -> None:
    """Tells the operators where code objects come from and which target is simulated. Opens nothing yet.

    simulates_cpu_tensors is called when a code object is requested, for the log.
    """
    source = _SOURCE(functools.partial(_give_code_object, simulates_cpu_tensors))
    _kept.append(source)
    operators().hipkittens_runtime_set_code_object_source(source)
    atexit.register(_before_exit)
    _set_simulated_arch(arch)


def _set_simulated_arch(arch: str) -> None:
    if operators().hipkittens_torch_set_simulated_arch(arch.encode()):
        raise ValueError(f"hipkittens: simulated arch '{arch}'; allowed: {', '.join(_installation.TARGETS)}")


def apply_simulator_settings() -> None:
    """Applies the settings of the process to this thread, for a launch of its own."""
    _simulator_control().apply_settings()


def simulator_settings() -> dict[str, Any]:
    return _simulator_control().get_settings()


def configure_simulator(arch: str, settings: dict[str, Any]) -> None:
    _simulator_control().set_settings(settings)
    operators().hipkittens_torch_set_prefill(settings["poison"])
    _set_simulated_arch(arch)


def simulated_partitions() -> int:
    return _simulator_control().partitions()


def set_simulated_partitions(count: int) -> None:
    _simulator_control().set_partitions(count)


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
    """The first kernel that this thread's last operator launched, or ''."""
    return operators().hipkittens_torch_last_kernel().decode()


def hip_status() -> dict[str, Any]:
    """HIP on this machine: the library, its devices, or why there are none."""
    return json.loads(operators().hipkittens_runtime_hip_status())
