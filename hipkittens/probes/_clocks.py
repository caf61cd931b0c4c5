# SPDX-License-Identifier: MIT
"""Clocks and latencies, which only a GPU has: measured beside what the cycle model takes them for."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import _timing
from ._device import Device
from ._fact import Fact

_UNROLLED = 128  # instructions in a turn of probe.chain
_LINE = 128  # bytes
_STEADY_MHZ = 100  # of s_memrealtime
# The numbers of csrc/kernels/probe/kinds.h: Chain.
_VECTOR, _TRANSCENDENTAL, _MATRIX, _MATRIX_INDEPENDENT, _LDS, _MEMORY, _BARRIER = range(7)
_USERS = ("csrc/simulator/timing/parameters.def",)


def _product(device: Device) -> str:
    """Which of the cycle model's devices it is, or else the first of its target."""
    of_target = [name for name, target in _timing.DEVICES.items() if target == device.target]
    return next((name for name in of_target if name in device.name.upper()), of_target[0])


def _model(device: Device, parameter: str) -> dict[str, Any]:
    product = _product(device)
    (row,) = (row for row in _timing.parameters(product) if row["name"] == parameter)
    return {
        "value": row["value"],
        "unit": row["unit"],
        "source": f"{parameter} of {product}: {row['source']}",
    }


def _chain(
    device: Device,
    which: int,
    steps: int,
    *,
    warm_steps: int = 1,
    workgroups: int = 1,
    input: torch.Tensor | None = None,
) -> tuple[float, float]:
    """Clocks of an instruction, and the core's clock in MHz meanwhile: medians over workgroups."""
    if device.simulated:
        steps, warm_steps, workgroups = 1, min(warm_steps, 1), 1
    found = device.launch(
        "chain", input, 2 * workgroups, workgroups=workgroups, which=which, steps=steps, warm_steps=warm_steps
    )
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
    _, alone = _chain(device, _VECTOR, 10_000)
    clocks, loaded = _chain(device, _MATRIX_INDEPENDENT, 20_000, workgroups=device.compute_units)
    return {
        "one_wave_mhz": round(alone),
        "matrix_cores_busy_mhz": round(loaded),
        "matrix_clocks": round(clocks, 2),
    }


def _cycle_of_lines(lines: int, device: Device) -> torch.Tensor:
    """Where each line sends a walk that comes by all of them, in no order that anything could guess: byte offsets."""
    order = torch.randperm(lines, generator=torch.Generator().manual_seed(lines)).to(torch.int32)
    table = torch.zeros(lines, _LINE // 4, dtype=torch.int32)
    table[order.long(), 0] = order.roll(-1) * _LINE
    return table.to(device.torch_device)


@dataclass(frozen=True)
class _Level:
    """Of the memory below a compute unit: bytes that it holds, and those above it do not; turns of the chain in which all of
    them are seen once before the clock runs."""

    bytes: int
    warm: bool

    def find(self, device: Device) -> dict[str, float]:
        lines = (256 * _LINE if device.simulated else self.bytes) // _LINE
        turns = lines // _UNROLLED
        input = _cycle_of_lines(lines, device)
        clocks, megahertz = _chain(
            device, _MEMORY, min(turns, 64), warm_steps=turns if self.warm else 0, input=input
        )
        nanoseconds = clocks * 1000 / megahertz if megahertz else 0.0
        return {"clocks": round(clocks, 1), "ns": round(nanoseconds, 1), "core_mhz": round(megahertz)}


def _assumed(**parameters: str) -> Callable[[Device], Mapping[str, Any]]:
    return lambda device: {name: _model(device, parameter) for name, parameter in parameters.items()}


def _matrix_clocks(device: Device) -> Mapping[str, Any]:
    """Four passes of a 16x16 product of 16-bit elements: K is 16 on gfx942 and 32 on gfx950."""
    each = _model(device, "matrix_pass")
    return {"clocks": each | {"value": 4 * each["value"], "source": f"four times {each['source']}"}}


_KIB, _MIB = 1 << 10, 1 << 20
FACTS = [
    Fact(
        "clock",
        "core clock in MHz with one wave, and with every matrix core busy with bf16 products of random numbers",
        _USERS,
        _find_clock,
        assumed=lambda device: {
            "one_wave_mhz": _model(device, "clock_peak"),
            "matrix_cores_busy_mhz": _model(device, "clock_matrix_bf16"),
            "matrix_clocks": _matrix_clocks(device)["clocks"],
        },
    ),
    Fact(
        "latency_vector",
        "clocks from a v_add_f32 to a dependent one",
        _USERS,
        _find_chain(_VECTOR, 100),
        assumed=_assumed(clocks="vector_operation"),
    ),
    Fact(
        "latency_transcendental",
        "clocks from a v_exp_f32 to a dependent one",
        _USERS,
        _find_chain(_TRANSCENDENTAL, 100),
        assumed=_assumed(clocks="transcendental_f32"),
    ),
    Fact(
        "latency_matrix",
        "clocks from a 16x16 bf16 matrix instruction to one that adds to its result",
        _USERS,
        _find_chain(_MATRIX, 100),
        assumed=_matrix_clocks,
    ),
    Fact(
        "interval_matrix",
        "clocks from a 16x16 bf16 matrix instruction to the next, of four independent sums",
        _USERS,
        _find_chain(_MATRIX_INDEPENDENT, 100),
        assumed=_matrix_clocks,
    ),
    Fact(
        "latency_barrier",
        "clocks of an s_barrier that four waves reach together",
        _USERS,
        _find_chain(_BARRIER, 100),
        assumed=_assumed(clocks="barrier"),
    ),
    Fact(
        "latency_lds",
        "clocks from a ds_read_b32 to a dependent one; the model's is without ports and banks",
        _USERS,
        _find_chain(_LDS, 100),
        assumed=_assumed(clocks="lds_latency"),
    ),
    Fact(
        "latency_vector_cache",
        "clocks from a global_load_dword to a dependent one, in 16 KiB",
        _USERS,
        _Level(16 * _KIB, warm=True).find,
        assumed=_assumed(clocks="vector_cache_hit"),
    ),
    Fact(
        "latency_l2",
        "the same in 2 MiB",
        _USERS,
        _Level(2 * _MIB, warm=True).find,
        assumed=_assumed(clocks="l2_hit"),
    ),
    Fact(
        "latency_mall",
        "the same in 64 MiB",
        _USERS,
        _Level(64 * _MIB, warm=True).find,
        assumed=_assumed(ns="mall_latency"),
    ),
    Fact(
        "latency_hbm",
        "the same in 1 GiB, first touches and so TLB misses among them",
        _USERS,
        _Level(1024 * _MIB, warm=False).find,
        assumed=_assumed(ns="hbm_latency"),
    ),
]
