# SPDX-License-Identifier: MIT
"""Facts about LDS: which lanes it serves together, from how many banks, and which data transposed reads deliver to which lane."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ._device import Device
from ._fact import Fact

_LANES = 64
_ACCESSES_OF_WAVE, _WAVES, _SIMULATED_WAVES = 16, 8, 1  # in each of two turns, the second is timed
_TRIES = 5  # on a GPU; the fastest counts
_NONE, _FIRST = -1, 16  # no access; an address
_FAR, _BESIDE = 256, 80  # bytes: the same bank of 32 and of 64, and another one
_BANKS = (16, 32, 64, 128)


def _consecutive(width: int) -> list[list[int]]:
    return [list(range(first, first + width)) for first in range(0, _LANES, width)]


def _twice(*lower: Sequence[int]) -> list[list[int]]:
    """Groups of lanes 0 to 31, and the same of lanes 32 to 63."""
    return [[lane + half for lane in group] for half in (0, 32) for group in lower]


def _lanes(*runs: tuple[int, int]) -> list[int]:
    return [lane for first, last in runs for lane in range(first, last + 1)]


_EIGHT = _twice(
    _lanes((0, 3), (20, 23)), _lanes((4, 7), (16, 19)), _lanes((8, 11), (28, 31)), _lanes((12, 15), (24, 27))
)
_SIXTEEN = _twice(_lanes((0, 3), (12, 15), (20, 27)), _lanes((4, 11), (16, 19), (28, 31)))
# The numbers in csrc/kernels/probe/kinds.h: LdsAccess. The expectation is csrc/simulator/memory/lds_banks.cpp: banks, phases.
_ACCESSES: dict[str, dict[str, tuple[int, list[list[int]]]]] = {
    "read_b32": {"gfx942": (32, _consecutive(32)), "gfx950": (64, _consecutive(32))},
    "read_b64": {"gfx942": (32, _consecutive(16)), "gfx950": (64, _consecutive(32))},
    "read_b96": {"gfx942": (32, _EIGHT), "gfx950": (32, _EIGHT)},
    "read_b128": {"gfx942": (32, _EIGHT), "gfx950": (64, _SIXTEEN)},
    "write_b32": {"gfx942": (32, _consecutive(32)), "gfx950": (32, _consecutive(32))},
    "write_b64": {"gfx942": (32, _consecutive(16)), "gfx950": (32, _consecutive(16))},
    "write_b96": {"gfx942": (32, _consecutive(8)), "gfx950": (32, _consecutive(8))},
    "write_b128": {"gfx942": (32, _consecutive(8)), "gfx950": (32, _consecutive(8))},
    "read_b64_tr_b16": {"gfx950": (64, _consecutive(32))},
}
_PAIRS = list(itertools.combinations(range(_LANES), 2))
# Enough to distinguish the phases of every table, for the slow simulator.
_FEW_PAIRS = [pair for pair in _PAIRS if pair[0] % 4 == 0]


def _addresses(pairs: Sequence[tuple[int, int]], apart: int, others: int) -> torch.Tensor:
    """The addresses of a workgroup for each pair: its lanes access addresses this many bytes apart, the other lanes `others`."""
    addresses = torch.full((len(pairs), _LANES), others, dtype=torch.int32)
    rows = torch.arange(len(pairs))
    first, second = torch.tensor(pairs).T
    addresses[rows, first], addresses[rows, second] = _FIRST, _FIRST + apart
    return addresses


def _conflicts(device: Device, access: int, addresses: torch.Tensor, free: torch.Tensor) -> list[bool]:
    """Whether each row of addresses costs more than `free`, in which no two lanes need the same bank.

    A GPU shows it by its clock: at least one more cycle for each access. The simulator counts the cycles of all rows of a launch, so the
    rows are bisected until all or none of them have one.
    """
    rows = torch.cat([free, addresses])
    asked = {"which": access, "steps": _SIMULATED_WAVES if device.simulated else _WAVES}
    if not device.simulated:
        clocks = torch.stack(
            [
                device.launch("lds_access", rows, len(rows), workgroups=len(rows), **asked)
                for _ in range(_TRIES)
            ]
        ).amin(0)
        device.note(
            "clocks", {str(clock): count for clock, count in sorted(Counter(clocks.tolist()).items())}
        )
        return (clocks[1:] > clocks[0] + _ACCESSES_OF_WAVE * _WAVES // 2).tolist()
    device.launch("lds_access", rows[:2], 2, workgroups=2, **asked)  # under the checkers
    found = [False] * len(addresses)

    def search(first: int, past: int) -> None:
        count = past - first
        cycles = device.conflict_cycles("lds_access", addresses[first:past], count, workgroups=count, **asked)
        if cycles == 2 * _ACCESSES_OF_WAVE * _SIMULATED_WAVES * count:
            found[first:past] = [True] * count
        elif cycles:
            middle = (first + past) // 2
            search(first, middle)
            search(middle, past)

    search(0, len(addresses))
    return found


def _find_banks(access: int, others: int) -> Callable[[Device], dict[str, Any]]:
    def find(device: Device) -> dict[str, Any]:
        free = _addresses([(0, 1)], _BESIDE, others)
        pairs = _FEW_PAIRS if device.simulated else _PAIRS
        slow = _conflicts(device, access, _addresses(pairs, _FAR, others), free)
        together = {pair for pair, is_slow in zip(pairs, slow, strict=True) if is_slow}
        phases: list[list[int]] = []
        for lane in range(_LANES):
            for phase in phases:
                if (phase[0], lane) in together:
                    phase.append(lane)
                    break
            else:
                phases.append([lane])
        # Every lane of a phase has to wait for every other one of it, or there are no phases.
        explained = {pair for phase in phases for pair in itertools.combinations(phase, 2)} & set(pairs)
        pair = min(together, default=(0, 1))
        apart = torch.cat([_addresses([pair], count * 4, others) for count in _BANKS])
        banks = [
            count
            for count, is_slow in zip(_BANKS, _conflicts(device, access, apart, free), strict=True)
            if is_slow
        ]
        return {
            "banks": min(banks, default=None),
            "phases": sorted(phases),
            "pairs_beside_phases": sorted(map(list, together ^ explained)),
        }

    return find


def _expected_banks(name: str) -> Callable[[str], dict[str, Any]]:
    def expected(target: str) -> dict[str, Any]:
        banks, phases = _ACCESSES[name][target]
        return {"banks": banks, "phases": sorted(phases), "pairs_beside_phases": []}

    return expected


def _bank_fact(number: int, name: str) -> Fact:
    transposed = "_tr_" in name
    return Fact(
        f"lds_banks_{name}",
        f"LDS serves ds_{name} in these phases of lanes, from so many banks of 4 bytes",
        ("csrc/tiles/swizzle.h", "csrc/tiles/target.h", "csrc/simulator/memory/lds_banks.cpp"),
        # A transposed read needs all lanes: the others read one address, which costs nothing.
        _find_banks(number, 0 if transposed else _NONE),
        _expected_banks(name),
        targets=tuple(_ACCESSES[name]),
    )


# --- transposed reads ---
_MATRIX = (torch.arange(_LANES * 12) * 0x9E3779B1 >> 13 & 0xFF).to(torch.uint8)


def _bits(data: torch.Tensor) -> torch.Tensor:
    """Bytes to bits, the lowest first."""
    return (data.int()[:, None] >> torch.arange(8) & 1).flatten()


def _find_transposed(bits: int) -> Callable[[Device], torch.Tensor]:
    return lambda device: device.launch(
        "transposed_read", _MATRIX.view(torch.int32), _LANES * 3, which=bits
    ).view(_LANES, 3)


def _expected_transposed(bits: int) -> Callable[[str], torch.Tensor]:
    def expected(target: str) -> torch.Tensor:
        size = 12 if bits == 6 else 8  # bytes of a lane
        elements = 8 * size // bits
        # [16 lanes' group][row][column][bit]: sixteen lanes read rows of sixteen elements in lane order.
        matrix = _bits(_MATRIX[: _LANES * size]).view(4, elements, 16, bits)
        columns = matrix.permute(0, 2, 1, 3).reshape(_LANES, size // 4, 32)
        dwords = (columns.long() << torch.arange(32)).sum(2)
        found = torch.zeros(_LANES, 3, dtype=torch.int64)
        found[:, : size // 4] = dwords
        return found.to(torch.int32)

    return expected


def _transposed_fact(bits: int) -> Fact:
    name = "ds_read_b96_tr_b6" if bits == 6 else f"ds_read_b64_tr_b{bits}"
    users = ("csrc/simulator/execute/lds_transpose.cpp",)
    return Fact(
        f"transposed_read_{bits}",
        f"{name}: every 16 lanes read rows of 16 elements in lane order; lane l of them gets column l, rows from low to high bits",
        (_TRANSPOSED_USER, *users) if bits == 16 else users,
        _find_transposed(bits),
        _expected_transposed(bits),
        targets=("gfx950",),
    )


_TRANSPOSED_USER = "csrc/tiles/memory_intrinsics.h: lds_read_transposed"
FACTS = [
    *(_bank_fact(number, name) for number, name in enumerate(_ACCESSES)),
    *(_transposed_fact(bits) for bits in (16, 8, 6, 4)),
]
