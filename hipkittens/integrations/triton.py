# SPDX-License-Identifier: MIT
"""Runs unmodified Triton kernels on the simulated GPUs: Triton compiles for AMD without one, and launches through the simulator's HIP
driver API.

    from hipkittens.integrations import triton as simulated

    with simulated.active(), hipkittens.simulate("gfx950"):
        add_kernel[grid](x, y, out, n, BLOCK=1024)     # x, y, out: CPU tensors

Triton itself is not changed: its AMD driver is pointed to libhipkittens_simulator.so (as TRITON_LIBHIP_PATH would), and its queries to
torch.cuda are answered by the simulated device. A launch may access the storages of its tensor arguments.

Meanwhile `@triton.autotune`, `triton.testing.do_bench` and `do_bench_cudagraph` get *modelled* times: a function runs once, and its time is
the sum of its launches' in the cycle model (hipkittens.timing; MI300X for gfx942, MI355X for gfx950). No time is measured, all statistics
of one function are equal, and configurations chosen this way are forgotten when the context ends.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from triton import knobs
from triton.backends.amd import driver as amd
from triton.runtime import driver as triton_driver
from triton.runtime.errors import OutOfResources

from .. import _backend, _installation
from . import _triton_benchmark
from ._simulated_device import SimulatedLibrary

# Triton requires a file of this name.
_LIBRARY_NAME = "libamdhip64.so"
_MOST_WORK_ITEMS = 1024  # of a workgroup: maxThreadsPerBlock of both targets


class TooManyWarps(OutOfResources):
    """A kernel with more warps than a workgroup of an AMD GPU can have. As for any OutOfResources, autotuning discards the configuration."""

    def __init__(self, kernel: str, warps: int, warp_size: int) -> None:
        super().__init__(warps * warp_size, _MOST_WORK_ITEMS, "threads")
        self.kernel, self.warps, self.warp_size = kernel, warps, warp_size

    def __str__(self) -> str:
        return (
            f"hipkittens: Triton kernel {self.kernel} has num_warps={self.warps}, which is {self.required} work-items at {self.warp_size} a "
            f"wave; a workgroup of an AMD GPU has at most {self.limit}: num_warps is at most {self.limit // self.warp_size} "
            "(programs that ask for 32 mean warps of 32 threads: let them see torch.version.hip, as inside hipkittens.integrations.rocm.active())"
        )

    def __reduce__(self) -> Any:
        return type(self), (self.kernel, self.warps, self.warp_size)


class SimulatedDriver(amd.HIPDriver):
    """Triton's AMD driver for the device that hipkittens simulates (HIPKITTENS_ARCH, or inside hipkittens.simulate)."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="hipkittens")
        path = Path(self._directory.name) / _LIBRARY_NAME
        path.symlink_to(_installation.SIMULATOR)
        # The base class queries torch.cuda, which has no device here.
        with knobs.amd.scope():
            knobs.amd.libhip_path = str(path)
            amd._get_path_to_hip_runtime_dylib.cache_clear()
            amd.HIPUtils.__dict__.get("instance") and delattr(amd.HIPUtils, "instance")
            self.utils = amd.HIPUtils()
        self._simulator = SimulatedLibrary()
        self._load_binary = self.utils.load_binary
        self.utils.load_binary = self._load_on_current_device
        self.launcher_cls = self._make_launcher
        self._current = None

    def get_current_device(self) -> int:
        return self._simulator.ordinal_of(_backend.arch())

    def set_current_device(self, index: int) -> None:
        if index != self.get_current_device():
            raise ValueError("hipkittens: choose the simulated device with hipkittens.simulate(arch)")

    def get_current_stream(self, index: int) -> int:
        return 0

    def get_device_capability(self, index: int | None = None) -> tuple[int, int]:
        return 9, 4 if _backend.arch() == "gfx942" else 5

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    @staticmethod
    def is_active() -> bool:
        return True

    def _load_on_current_device(self, *arguments: Any) -> Any:
        self._simulator.enter_device(self.get_current_device())
        return self._explained(self._load_binary, *arguments)

    def _make_launcher(self, source: Any, metadata: Any) -> Any:
        if metadata.num_warps * metadata.warp_size > _MOST_WORK_ITEMS:
            raise TooManyWarps(metadata.name, metadata.num_warps, metadata.warp_size)
        launch = amd.HIPLauncher(source, metadata)

        def call(
            grid_x,
            grid_y,
            grid_z,
            stream,
            function,
            kernel_metadata,
            launch_metadata,
            enter,
            leave,
            *arguments,
        ):
            self._simulator.enter_device(self.get_current_device())
            with self._simulator.registered(arguments):
                self._explained(
                    launch, grid_x, grid_y, grid_z, stream, function, kernel_metadata, launch_metadata, enter,
                    leave, *arguments,
                )  # fmt: skip

        return call

    @_backend.interruptible
    def _explained(self, function: Any, *arguments: Any) -> Any:
        """Triton's errors contain only HIP's code; the simulator knows kernel, lane, instruction and address."""
        try:
            return function(*arguments)
        # Triton continues to its exit hook with HIP's error set, which Python then reports as a SystemError.
        except (RuntimeError, SystemError) as error:
            raise RuntimeError(
                f"{error.__cause__ or error}\n{self._simulator.library.hipkittens_last_error().decode()}"
            ) from error


_driver: SimulatedDriver | None = None


def activate() -> None:
    """From now on Triton kernels of this process run on the simulated device. Raises RuntimeError without a C compiler."""
    global _driver
    if _driver is None:
        _driver = SimulatedDriver()
    triton_driver.set_active(_driver)
    _triton_benchmark.install()


def restore() -> None:
    """Lets Triton choose a driver by itself again, and measure its benchmarks."""
    triton_driver._active = None
    _triton_benchmark.remove()


@contextlib.contextmanager
def active() -> Iterator[None]:
    """Context manager for activate(); the previously active driver is restored afterwards."""
    before, was_installed = triton_driver._active, _triton_benchmark.is_installed()
    activate()
    try:
        yield
    finally:
        triton_driver._active = before
        if not was_installed:
            _triton_benchmark.remove()
