# SPDX-License-Identifier: MIT
"""torch.cuda of a ROCm build, emulated for the simulated GPU."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .. import _backend
from ._rocm_tensors import SIMULATED, is_simulated
from ._simulated_device import SimulatedLibrary

# hipDeviceAttribute_t of HIP 6 and 7 (hip_runtime_api.h), by torch's name for the property.
_ATTRIBUTES = {
    "multi_processor_count": 63,
    "warp_size": 87,
    "max_threads_per_block": 56,
    "max_threads_per_multi_processor": 57,
    "regs_per_multiprocessor": 72,
    "shared_memory_per_block": 74,
    "shared_memory_per_multiprocessor": 10002,
    "L2_cache_size": 19,
    "clock_rate": 5,
    "memory_clock_rate": 60,
    "memory_bus_width": 59,
    "is_integrated": 16,
}


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of the simulated GPU under torch's names, in bytes, kHz and bits."""

    name: str
    major: int
    minor: int
    gcnArchName: str
    total_memory: int
    multi_processor_count: int
    warp_size: int
    max_threads_per_block: int
    max_threads_per_multi_processor: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    is_integrated: int
    is_multi_gpu_board: int = 0


class Stream:
    """The single queue of the simulated GPU: work is complete as soon as it is queued."""

    cuda_stream = 0
    device = SIMULATED
    device_index = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        _checked("torch.cuda.Stream", device)
        self.priority = priority

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Event:
    """A point in the queue, which has always been reached. It has no time."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise NotImplementedError(
                "hipkittens.integrations.rocm: torch.cuda.Event: interprocess is True; allowed: False"
            )

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        raise NotImplementedError(
            "hipkittens.integrations.rocm: torch.cuda.Event.elapsed_time: the simulated GPU has no clock; modelled times are given "
            "by hipkittens.timing, and by triton.testing.do_bench under this integration"
        )


def _checked(where: str, device: Any) -> None:
    """None, the simulated GPU, or "cpu", where its tensors really are; ValueError for any other device."""
    if device is None or (isinstance(device, int) and device == -1):
        return
    if not is_simulated(where, device) and torch.device(device).type != "cpu":
        raise ValueError(f"{where}: device is {device!r}; allowed: 'cuda', 'cuda:0', 0")


class device:
    """torch.cuda.device: a no-op, since the simulated GPU is always the current device."""

    def __init__(self, device: Any = None) -> None:
        _checked("torch.cuda.device", device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class SimulatedGPU:
    """Implements torch.cuda for the target that is simulated at the time of each call."""

    def __init__(self) -> None:
        self._simulated = SimulatedLibrary()
        self._stream = Stream()
        self._properties: dict[str, DeviceProperties] = {}

    def version(self) -> str:
        """The version of the simulator's HIP library, as in torch.version.hip."""
        number = ctypes.c_int()
        self._simulated.check(self._simulated.library.hipRuntimeGetVersion(ctypes.byref(number)))
        return f"{number.value // 10_000_000}.{number.value // 100_000 % 100}.{number.value % 100_000}"

    def properties(self, device: Any = None) -> DeviceProperties:
        _checked("torch.cuda.get_device_properties", device)
        arch = _backend.arch()
        if arch not in self._properties:
            self._properties[arch] = self._read(arch)
        return self._properties[arch]

    def _read(self, arch: str) -> DeviceProperties:
        library, check = self._simulated.library, self._simulated.check
        ordinal = self._simulated.ordinal_of(arch)
        name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
        major, minor, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        check(library.hipDeviceGetName(name, len(name), ordinal))
        check(library.hipDeviceTotalMem(ctypes.byref(memory), ordinal))
        check(library.hipDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), ordinal))
        attributes = {}
        for attribute, number in _ATTRIBUTES.items():
            check(library.hipDeviceGetAttribute(ctypes.byref(value), number, ordinal))
            attributes[attribute] = value.value
        return DeviceProperties(
            name.value.decode(),
            major.value,
            minor.value,
            f"{arch}:sramecc+:xnack-",
            memory.value,
            **attributes,
        )

    def _capability(self, device: Any = None) -> tuple[int, int]:
        properties = self.properties(device)
        return properties.major, properties.minor

    def _memory(self, device: Any = None) -> tuple[int, int]:
        total = self.properties(device).total_memory
        return total, total

    def functions(self) -> Iterator[tuple[Any, str, Any]]:
        """(owner, name, replacement)."""
        cuda = torch.cuda
        nothing: Callable = lambda *_, **__: None  # noqa: E731
        # "cuda" tensors are filled by the CPU's generator.
        seed = torch.default_generator.manual_seed
        yield torch.version, "hip", self.version()
        yield torch.version, "cuda", None
        answers: dict[str, Any] = {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "init": nothing,
            "_lazy_init": nothing,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda device: _checked("torch.cuda.set_device", device),
            "device": device,
            "get_device_properties": self.properties,
            "get_device_name": lambda device=None: self.properties(device).name,
            "get_device_capability": self._capability,
            "get_arch_list": lambda: [_backend.arch()],
            "is_bf16_supported": lambda including_emulation=True: True,
            "synchronize": lambda device=None: _checked("torch.cuda.synchronize", device),
            "current_stream": lambda device=None: self._stream,
            "default_stream": lambda device=None: self._stream,
            "stream": lambda stream: contextlib.nullcontext(),
            "Stream": Stream,
            "Event": Event,
            "empty_cache": nothing,
            "is_current_stream_capturing": lambda: False,
            "mem_get_info": self._memory,
            "default_generators": (torch.default_generator,),
            "manual_seed": seed,
            "manual_seed_all": seed,
            "get_rng_state": lambda device="cuda": torch.get_rng_state(),
            "set_rng_state": lambda state, device="cuda": torch.set_rng_state(state),
            "get_rng_state_all": lambda: [torch.get_rng_state()],
            "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        }
        for name, answer in answers.items():
            yield cuda, name, answer
            # The submodule that torch.cuda has them from.
            if hasattr(cuda.random, name) and ("seed" in name or "rng" in name):
                yield cuda.random, name, answer
        for name in (
            "CUDAGraph",
            "graph",
            "make_graphed_callables",
            "memory_stats",
            "memory_snapshot",
            "memory_allocated",
            "max_memory_allocated",
            "memory_reserved",
            "max_memory_reserved",
            "reset_peak_memory_stats",
            "reset_accumulated_memory_stats",
            "caching_allocator_alloc",
            "utilization",
        ):
            yield cuda, name, _refused(name)


def _refused(name: str) -> Callable:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"hipkittens.integrations.rocm: torch.cuda.{name} is not imitated; docs/integrations.md lists what is"
        )

    return refuse
