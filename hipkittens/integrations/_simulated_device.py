# SPDX-License-Identifier: MIT
"""The simulated GPU as described by its HIP library, and the memory that launches may access."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch

from .. import _installation


class SimulatedLibrary:
    """Functions of the simulator's HIP library, in addition to those that a program under it calls itself."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(_installation.SIMULATOR))
        self.library.hipkittens_last_error.restype = ctypes.c_char_p
        self.library.hipHostRegister.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
        self.library.hipHostUnregister.argtypes = [ctypes.c_void_p]

    def check(self, status: int) -> None:
        if status:
            raise RuntimeError(self.library.hipkittens_last_error().decode())

    def ordinal_of(self, arch: str) -> int:
        """The first device of this kind; HIPKITTENS_SIMULATED_DEVICES need not contain one."""
        count, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self.check(self.library.hipGetDeviceCount(ctypes.byref(count)))
        for ordinal in range(count.value):
            self.check(
                self.library.hipDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), ordinal)
            )
            if f"gfx{major.value}{minor.value}" in arch:
                return ordinal
        raise ValueError(f"hipkittens: no {arch} is among the {count.value} simulated devices")

    def enter_device(self, index: int) -> None:
        """Sets HIP's current device, which belongs to a thread, as do the simulator's settings."""
        self.check(self.library.hipSetDevice(index))
        self.library.hipkittens_apply_process_settings()

    @contextlib.contextmanager
    def registered(self, arguments: tuple[Any, ...]) -> Iterator[None]:
        """Lets a launch access the storages of the tensors among its arguments."""
        storages = {}
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and argument.numel():
                # Not the tensor's own attribute, which integrations.rocm changes.
                storage = argument.untyped_storage()
                if storage.device.type != "cpu":
                    raise ValueError(
                        f"hipkittens: a simulated Triton kernel was given a tensor on {storage.device}; move it with .cpu()"
                    )
                storages[storage.data_ptr()] = storage.nbytes()
        held = []
        try:
            for address, size in storages.items():
                self.check(self.library.hipHostRegister(address, size, 0))
                held.append(address)
            yield
        finally:
            for address in held:
                self.check(self.library.hipHostUnregister(address))
