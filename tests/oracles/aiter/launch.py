# SPDX-License-Identifier: MIT
"""Launches AITER's kernels in the simulator with named arguments, and with access to exactly the tensors' memory."""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tests import simulated_device
from tests.oracles.aiter import wheel

# AITER prefetches past its tensors, inside buffer descriptors of 2 GB or more: up to a tile of weights.
OVER_READ = "load outside the memory of this launch"


class Buffer:
    """A tensor on the simulated device."""

    def __init__(self, values: torch.Tensor, *, writable: bool = False):
        self.initial = values.contiguous()
        self.bytes = self.initial.numel() * self.initial.itemsize
        self.writable = writable
        self._memory = np.empty(self.bytes + 256, np.uint8)
        self._begin = -self._memory.ctypes.data % 256
        inside = torch.from_numpy(self._memory[self._begin : self._begin + self.bytes])
        self.tensor = inside.view(self.initial.dtype).view(self.initial.shape)
        self.reset()

    def reset(self) -> None:
        self.tensor.copy_(self.initial)

    @property
    def address(self) -> int:
        return self._memory.ctypes.data + self._begin

    def stride(self, dimension: int) -> int:
        """The stride in bytes, as AITER's structures expect it."""
        return self.tensor.stride(dimension) * self.tensor.itemsize

    def region(self) -> np.ndarray:
        """The bytes a launch may touch."""
        return self._memory[self._begin : self._begin + self.bytes]


def output(shape: Sequence[int], dtype: torch.dtype, *, zero: bool = False) -> Buffer:
    """An output buffer: NaN (or -1) everywhere unless the kernel adds to zeros."""
    if zero:
        return Buffer(torch.zeros(tuple(shape), dtype=dtype), writable=True)
    count = int(np.prod(shape)) * dtype.itemsize
    return Buffer(torch.full((count,), 0xFF, dtype=torch.uint8).view(dtype).view(tuple(shape)), writable=True)


@dataclasses.dataclass(frozen=True)
class Run:
    """The results of a launch, and its keyword arguments other than the segment. `over_read` is the simulator's
    finding when the kernel loads from beyond its tensors."""

    report: simulated_device.Report
    over_read: str | None = None
    segment: bytes = b""
    launch: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    buffers: Sequence[Buffer] = ()  # keeps the memory that the segment points to


class Kernel:
    """The one kernel of an AITER code object."""

    def __init__(self, name: str):
        self.name = name
        code = wheel.objects()[name].read_bytes()
        self.metadata = wheel.metadata(code)
        self.offsets = {argument.name: argument for argument in self.metadata.arguments}
        target = name.split("/")[0]
        self.kernel = simulated_device.Module(code, target).kernel(self.metadata.name)

    def segment(self, arguments: Mapping[str | int, Buffer | int | float]) -> bytes:
        """The argument segment; keys are names from the metadata, or offsets where those names are wrong.

        Slots that are not named hold a pattern: the kernels leave their padding alone.
        """
        packed = bytearray(b"\xa5" * self.metadata.argument_bytes)
        for argument in self.metadata.arguments:
            packed[argument.offset : argument.offset + argument.bytes] = bytes(argument.bytes)
        for key, value in arguments.items():
            offset = key if isinstance(key, int) else self.offsets[key].offset
            if isinstance(value, Buffer):
                piece = struct.pack("<Q", value.address)
            elif isinstance(value, float):
                piece = struct.pack("<f", value)
            else:
                piece = struct.pack("<I", value & 0xFFFFFFFF)
            packed[offset : offset + len(piece)] = piece
        return bytes(packed[: self.metadata.argument_bytes])

    def launch(
        self,
        grid: Sequence[int],
        arguments: Mapping[str | int, Buffer | int | float],
        *,
        also: Sequence[Buffer] = (),
        **settings,
    ) -> Run:
        """Run with exactly the tensors; if the kernel loads from beyond them, run again with zeros readable there.

        Waves advance in lockstep: several families overwrite LDS that a wave much slower than its neighbors would
        still have to read (fmha_v3_fwd and f8_block_scale of gfx950, I8gemm 192x128), pass barriers with LDS reads
        in flight, or use registers some loads before the wait that covers them (fmoe without quantization, mla).
        """
        settings = {"wave_turn": 16 if "/mla/" in self.name and "qseqlen" not in self.name else 4, **settings}
        buffers = list(dict.fromkeys([v for v in arguments.values() if isinstance(v, Buffer)] + list(also)))
        block = (*self.metadata.workgroup, 1, 1)[:3]
        segment = self.segment(arguments)
        regions = {f"{index}": buffer.region() for index, buffer in enumerate(buffers)}
        names = [name for name, buffer in zip(regions, buffers, strict=True) if not buffer.writable]
        launch = {"regions": regions, "grid": grid, "block": block, "read_only": names, **settings}
        try:
            return Run(self.kernel.launch(segment, **launch), None, segment, launch, buffers)
        except simulated_device.SimulatorError as error:
            if OVER_READ not in str(error):
                raise
            finding = str(error)
        for buffer in buffers:
            buffer.reset()
        launch["tolerate_overreads"] = True
        return Run(self.kernel.launch(segment, **launch), finding, segment, launch, buffers)


@functools.lru_cache(maxsize=8)
def kernel(name: str) -> Kernel:
    return Kernel(name)


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Root mean square of the difference over that of the reference."""
    difference = (result.double() - reference).square().sum() / reference.square().sum()
    return float(difference.sqrt())
