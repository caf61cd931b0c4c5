# SPDX-License-Identifier: MIT
"""Clocks and latencies, which only a GPU can provide: measured, and compared with the cycle model's assumptions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import _timing
from ._device import Device
from ._fact import Fact

_UNROLLED = 512  # instructions in a turn of probe.chain
_LINE = 128  # bytes
_STEADY_MHZ = 100  # of s_memrealtime
# The numbers of csrc/kernels/probe/kinds.h: Chain.
_VECTOR, _TRANSCENDENTAL, _MATRIX, _MATRIX_INDEPENDENT, _LDS, _MEMORY, _BARRIER = range(7)
_USERS = ("csrc/simulator/timing/parameters.def",)


def product_of(device: Device) -> str:
    """Which of the cycle model's devices it is, or otherwise the first of its target."""
    of_target = [name for name, target in _timing.DEVICES.items() if target == device.target]
    return next((name for name in of_target if name in device.name.upper()), of_target[0])


def _parameter(device: Device, parameter: str) -> dict[str, Any]:
    product = product_of(device)
    (row,) = (row for row in _timing.parameters(product) if row["name"] == parameter)
    return {
        "value": row["value"],
        "unit": row["unit"],
        "source": f"{parameter} of {product}: {row['source']}",
    }


def _run(
    device: Device, which: int, workgroups: int, input: torch.Tensor | None, **steps: int
) -> torch.Tensor:
    return device.launch("chain", input, 2 * workgroups, workgroups=workgroups, which=which, **steps)


def modelled_clocks(
    product: str, which: int, input: torch.Tensor | None = None, warm_steps: int = 1
) -> float:
    """The cycle model's time for an instruction of the same chain: the difference of a long and a short one."""
    twin, cycles = Device(_timing.DEVICES[product]), []
    for steps in (1, 3):
        with _timing.timing(product) as run:
            _run(twin, which, 1, input, warm_steps=warm_steps, steps=steps)
        cycles.append(run.launches[0].cycles)
    return (cycles[1] - cycles[0]) / (2 * _UNROLLED)


def _chain(
    device: Device,
    which: int,
    steps: int,
    *,
    warm_steps: int = 1,
    workgroups: int = 1,
    input: torch.Tensor | None = None,
) -> tuple[float, float]:
    """Clocks of an instruction, and the core clock in MHz at that time: medians over workgroups."""
    if device.simulated:
        steps, warm_steps, workgroups = 1, min(warm_steps, 1), 1
    found = _run(device, which, workgroups, input, warm_steps=warm_steps, steps=steps)
    clocks, steady = found.view(-1, 2).double().T.tolist()
    each = statistics.median(clocks) / (steps * _UNROLLED)
    rates = [clock * _STEADY_MHZ / ticks for clock, ticks in zip(clocks, steady, strict=True) if ticks > 0]
    return each, statistics.median(rates) if rates else 0.0


def _find_chain(which: int, steps: int) -> Callable[[Device], dict[str, float]]:
    def find(device: Device) -> dict[str, float]:
        clocks, megahertz = _chain(device, which, steps)
        return {"clocks": round(clocks, 2), "core_mhz": round(megahertz)}

    return find


def _find_clock(device: Device) -> dict[str, float]:
    _, alone = _chain(device, _VECTOR, 5_000)
    clocks, loaded = _chain(device, _MATRIX_INDEPENDENT, 5_000, workgroups=device.compute_units)
    return {
        "one_wave_mhz": round(alone),
        "matrix_cores_busy_mhz": round(loaded),
        "matrix_clocks": round(clocks, 2),
    }


def _cycle_of_lines(lines: int, device: Device) -> torch.Tensor:
    """The next line of each line in a walk through all of them, in an order that cannot be predicted: byte offsets."""
    order = torch.randperm(lines, generator=torch.Generator().manual_seed(lines)).to(device.torch_device)
    table = torch.zeros(lines, _LINE // 4, dtype=torch.int32, device=device.torch_device)
    table[order, 0] = (order.roll(-1) * _LINE).to(torch.int32)
    return table


@dataclass(frozen=True)
class _Level:
    """A level of the memory hierarchy below a compute unit: this many bytes fit into it and not into the level above. `warm`: the walk
    visits all of them once before the clock runs.
    """

    bytes: int
    warm: bool

    @property
    def _turns(self) -> int:
        return max(1, self.bytes // _LINE // _UNROLLED)

    def find(self, device: Device) -> dict[str, float]:
        lines = (256 * _LINE if device.simulated else self.bytes) // _LINE
        clocks, megahertz = _chain(
            device,
            _MEMORY,
            min(self._turns, 16),
            warm_steps=self._turns if self.warm else 0,
            input=_cycle_of_lines(lines, device),
        )
        nanoseconds = clocks * 1000 / megahertz if megahertz else 0.0
        return {"clocks": round(clocks, 1), "ns": round(nanoseconds, 1), "core_mhz": round(megahertz)}

    def modelled(self, device: Device) -> Mapping[str, Any]:
        lines = _cycle_of_lines(self.bytes // _LINE, Device(device.target))
        return _from_model(device, modelled_clocks(product_of(device), _MEMORY, lines, self._turns))


def _from_model(device: Device, clocks: float) -> Mapping[str, Any]:
    return {
        "clocks": {
            "value": round(clocks, 2),
            "unit": "clk",
            "source": f"this chain in the cycle model of {product_of(device)}",
        }
    }


def _parameters(**parameters: str) -> Callable[[Device], Mapping[str, Any]]:
    return lambda device: {name: _parameter(device, parameter) for name, parameter in parameters.items()}


def _chain_fact(name: str, statement: str, which: int) -> Fact:
    return Fact(
        name,
        statement,
        _USERS,
        _find_chain(which, 100),
        assumed=lambda device: _from_model(device, modelled_clocks(product_of(device), which)),
    )


_KIB, _MIB = 1 << 10, 1 << 20
_VECTOR_CACHE, _L2 = _Level(16 * _KIB, warm=True), _Level(2 * _MIB, warm=True)
_MALL, _HBM = _Level(64 * _MIB, warm=True), _Level(1024 * _MIB, warm=False)
FACTS = [
    Fact(
        "clock",
        "core clock in MHz with one wave, and with every matrix core busy with bf16 products of numbers that are not 0",
        _USERS,
        _find_clock,
        assumed=_parameters(one_wave_mhz="clock_peak", matrix_cores_busy_mhz="clock_matrix_bf16"),
    ),
    _chain_fact("latency_vector", "clocks from a v_add_f32 to a dependent one", _VECTOR),
    _chain_fact("latency_transcendental", "clocks from a v_exp_f32 to a dependent one", _TRANSCENDENTAL),
    _chain_fact(
        "latency_matrix",
        "clocks from a 16x16 bf16 matrix instruction to one that adds to its result",
        _MATRIX,
    ),
    _chain_fact(
        "interval_matrix",
        "clocks from a 16x16 bf16 matrix instruction to the next, of four independent sums",
        _MATRIX_INDEPENDENT,
    ),
    _chain_fact("latency_barrier", "clocks of an s_barrier that four waves reach together", _BARRIER),
    _chain_fact("latency_lds", "clocks from a ds_read_b32 to a dependent one", _LDS),
    Fact(
        "latency_vector_cache",
        "clocks from a global_load_dword to a dependent one, in 16 KiB",
        _USERS,
        _VECTOR_CACHE.find,
        assumed=_VECTOR_CACHE.modelled,
    ),
    Fact("latency_l2", "the same in 2 MiB", _USERS, _L2.find, assumed=_L2.modelled),
    Fact("latency_mall", "the same in 64 MiB", _USERS, _MALL.find, assumed=_parameters(ns="mall_latency")),
    Fact(
        "latency_hbm",
        "the same in 1 GiB, first touches and so TLB misses among them",
        _USERS,
        _HBM.find,
        assumed=_parameters(ns="hbm_latency"),
    ),
]
