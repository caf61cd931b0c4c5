# SPDX-License-Identifier: MIT
"""Clocks of one GEMM variant at one shape, for gemm_plan.py: from the cycle model, or measured on a GPU.

On a GPU each launch of a product is timed separately with events, and caches are overwritten before each repetition
(hipkittens/profiling/measure.py). Operands are random, since a chip's clock depends on them. The times are converted to clocks at
the chip's peak, which all rows of a target share: only their ratios affect the choice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from gemm_model import (
    bytes_of_rows,
    bytes_of_scales,
    described,
    formats_of,
    modelled,
    scale_strides,
    set_scale,
)

import hipkittens
from hipkittens import _backend, _installation, _resources, _timing
from hipkittens._packed_kernel import PackedKernel
from hipkittens.profiling.measure import device_of, measure
from hipkittens.quantization import dtype_of
from tests.kernels.gemm_plan import make_plan

_POINTERS = ("a.data", "b.data", "c.data", "bias", "partial", "a_scale.data", "b_scale.data")
_SIMDS = 4


class Modelled:
    """The cycle model of the chip that represents a target."""

    def __init__(self, target: str) -> None:
        self.target, self.device = target, {"gfx942": "MI325X", "gfx950": "MI355X"}[target]
        self.units = {"gfx942": 304, "gfx950": 256}[target]
        self.source = f"modelled as {self.device}, never measured"

    def clocks(self, tile: str, m: int, n: int, k: int, splits: int = 1) -> list[float]:
        """The clocks of each launch."""
        return [launch.cycles for launch in modelled(self.device, tile, m, n, k, splits=splits)]

    def held(self, tile: str, m: int, n: int, k: int) -> int:
        """Workgroups that a compute unit runs concurrently."""
        (launch, *_) = modelled(self.device, tile, m, n, k)
        return int(launch.report["workgroups_per_compute_unit"])


class Measured:
    """The GPU with this number. Raises ValueError if the grids of gemm_plan.py do not cover its number of compute units.

    time  microseconds of a call
    """

    def __init__(self, gpu: int = 0, time: Callable[[Callable[[], object]], float] | None = None) -> None:
        properties = torch.cuda.get_device_properties(gpu)
        self.torch_device = torch.device("cuda", gpu)
        self.target, self.units = _backend.arch_of(self.torch_device), properties.multi_processor_count
        product = device_of(properties.name)
        if product is None or self.units != Modelled(self.target).units:
            raise ValueError(
                f"this GPU is {properties.name!r} with {self.units} compute units; costs are fitted on chips of 304 (gfx942) "
                "and 256 (gfx950), all of them in one partition; --model takes the cycle model"
            )
        (peak,) = (row["value"] for row in _timing.parameters(product) if row["name"] == "clock_peak")
        self._megahertz = float(peak)
        self._time = time or (lambda call: measure(call).median)
        self.source = (
            f"measured on {properties.name}, clocks at {self._megahertz:g} MHz, hipkittens {hipkittens.__version__}, "
            f"HIP {torch.version.hip}"
        )

    def held(self, tile: str, m: int, n: int, k: int) -> int:
        """Workgroups that a compute unit runs concurrently: as many as registers and LDS allow."""
        (step, *_) = make_plan(*described(self.target, tile, m, n, k))["launches"]
        (kernel,) = _installation.pack(self.target).entry(step["kernel"])["kernels"]
        waves, _ = _resources.occupancy(self.target, kernel)
        return waves * _SIMDS // (kernel["workgroup_size"] // 64)

    def clocks(self, tile: str, m: int, n: int, k: int, splits: int = 1) -> list[float]:
        """The clocks of each launch."""
        calls, _ = self.calls(tile, m, n, k, splits)
        return [self._time(call) * self._megahertz for call in calls]

    def calls(
        self, tile: str, m: int, n: int, k: int, splits: int
    ) -> tuple[list[Callable[[], None]], tuple[torch.Tensor, ...]]:
        """The calls that make each launch; and a, b and c, where c is a @ b.T after all of them."""
        problem, variant = described(self.target, tile, m, n, k)
        a, b, scales = formats_of(tile)
        tensors = [
            self._operand(a, m, k),
            self._operand(b, n, k),
            torch.randn(m, n, device=self.torch_device).to(torch.bfloat16),
        ]
        for matrix, tensor in zip((problem.a, problem.b, problem.c), tensors, strict=True):
            matrix.data = tensor.data_ptr()
        for side, scale, rows in (("a", problem.a_scale, m), ("b", problem.b_scale, n)):
            strides = scale_strides(scales, side, k)
            if strides:
                count = bytes_of_scales(strides, rows)
                e8m0 = strides[2] == 32
                ones = torch.full(
                    (count if e8m0 else count // 4,),
                    127 if e8m0 else 1,
                    dtype=torch.uint8 if e8m0 else torch.float32,
                    device=self.torch_device,
                )
                tensors.append(ones)
            set_scale(scale, strides, tensors[-1].data_ptr() if strides else None)
        plan = make_plan(problem, variant, splits)
        if plan["workspace_bytes"]:
            tensors.append(torch.empty(plan["workspace_bytes"], dtype=torch.uint8, device=self.torch_device))
            plan = make_plan(problem, variant, splits, tensors[-1].data_ptr())
        at = {tensor.data_ptr(): tensor for tensor in tensors}
        return [self._call(step, at) for step in plan["launches"]], tuple(tensors[:3])

    def _operand(self, element: str, rows: int, k: int) -> torch.Tensor:
        """Random values, or random bytes of quantized values, all of which are numbers in formats of 6 and 4 bits."""
        if element in ("bf16", "fp8"):
            dtype = torch.bfloat16 if element == "bf16" else dtype_of("fp8", self.torch_device)
            return torch.randn(rows, k, device=self.torch_device).to(dtype)
        count = bytes_of_rows(element, rows, k)
        return torch.randint(0, 256, (count,), dtype=torch.uint8, device=self.torch_device)

    def _call(self, step: dict[str, Any], tensors: dict[int, torch.Tensor]) -> Callable[[], None]:
        kernel, data = _kernel(self.target, step["kernel"]), bytes.fromhex(step["arguments"])
        values: dict[str, Any] = {}
        for parameter in kernel.parameters:
            value = int.from_bytes(data[parameter.offset : parameter.offset + parameter.size], "little")
            values[parameter.name] = (tensors[value] if value else None) if parameter.is_pointer else value
        return lambda: kernel(values, grid=step["grid"], block=step["block"])


@functools.cache
def _kernel(target: str, symbol: str) -> PackedKernel:
    return PackedKernel(target, symbol, _POINTERS)
