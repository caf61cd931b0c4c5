# SPDX-License-Identifier: MIT
"""Facts about buffers, and loads from memory to LDS."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .._installation import TARGETS
from ._device import UNTOUCHED, Device
from ._fact import Fact

_LANES = 64
_LOADER = "csrc/tiles/memory_intrinsics.h: "


def _numbers(count: int) -> torch.Tensor:
    """Distinct dwords, none of them zero or UNTOUCHED."""
    return torch.arange(1, count + 1, dtype=torch.int32) * 0x01000193


# --- one 16-byte access of each lane ---
_SOURCE = _numbers(512)
_RECORDS = 16 * 20 + 8  # lane 20 is half inside
_SCALAR_OFFSET = 256


def _range_of_load(device: Device) -> torch.Tensor:
    return device.launch("buffer_range", _SOURCE, _LANES * 4, which=0, input_bytes=_RECORDS)


def _expected_range_of_load(target: str) -> torch.Tensor:
    expected = _SOURCE[: _LANES * 4].clone()
    expected[_RECORDS // 4 :] = 0
    return expected


def _scalar_offset_of_load(device: Device) -> torch.Tensor:
    return device.launch(
        "buffer_range", _SOURCE, _LANES * 4, which=0, input_bytes=1024, scalar_offset=_SCALAR_OFFSET
    )


def _expected_scalar_offset_of_load(target: str) -> torch.Tensor:
    expected = torch.zeros(_LANES * 4, dtype=torch.int32)
    inside = (1024 - _SCALAR_OFFSET) // 4
    expected[:inside] = _SOURCE[_SCALAR_OFFSET // 4 :][:inside]
    return expected


def _range_of_store(device: Device) -> torch.Tensor:
    return device.launch(
        "buffer_range",
        None,
        512,
        which=1,
        output_bytes=_SCALAR_OFFSET + _RECORDS,
        scalar_offset=_SCALAR_OFFSET,
    )


def _expected_range_of_store(target: str) -> torch.Tensor:
    expected = torch.full((512,), UNTOUCHED, dtype=torch.int32)
    first, inside = _SCALAR_OFFSET // 4, _RECORDS // 4
    expected[first : first + inside] = torch.arange(inside, dtype=torch.int32)
    return expected


# --- memory to LDS: two loads, the second with an offset of 128 lanes' bytes in the instruction; results are all of LDS ---
def _direct(bytes: int, records: int, scalar_offset: int) -> Callable[[Device], torch.Tensor]:
    return lambda device: device.launch(
        f"direct_to_lds_{bytes}",
        _numbers(_LANES * bytes),
        _LANES * bytes,
        input_bytes=records,
        scalar_offset=scalar_offset,
    )


def _expected_direct(bytes: int, records: int, scalar_offset: int) -> Callable[[str], torch.Tensor]:
    def expected(target: str) -> torch.Tensor:
        wave = _LANES * bytes // 4  # dwords
        source = _numbers(_LANES * bytes)
        source[records // 4 :] = 0
        lds = torch.full((4 * wave,), UNTOUCHED, dtype=torch.int32)
        for first in (0, 2 * wave):
            from_memory = scalar_offset // 4 + first
            lds[first : first + wave] = source[from_memory : from_memory + wave]
        return lds

    return expected


def _direct_facts(bytes: int) -> list[Fact]:
    instruction = f"buffer_load_dword{'x4' * (bytes == 16)} ... lds"
    wave, where = _LANES * bytes, _LOADER + "buffer_load_to_lds"
    targets = TARGETS if bytes == 4 else ("gfx950",)
    cases = (
        ("offset", f"the instruction's offset of {instruction} counts in memory and in LDS", 4 * wave, 0),
        (
            "beyond",
            f"{instruction} writes zeros to LDS for dwords beyond num_records",
            2 * wave + wave // 2 + 4,
            0,
        ),
        (
            "soffset",
            f"soffset of {instruction} counts in memory and in its range check, and not in LDS",
            3 * wave,
            wave // 2,
        ),
    )
    return [
        Fact(
            f"direct_to_lds_{bytes}_{name}",
            statement,
            (where,),
            _direct(bytes, records, scalar_offset),
            _expected_direct(bytes, records, scalar_offset),
            targets=targets,
        )
        for name, statement, records, scalar_offset in cases
    ]


FACTS = [
    Fact(
        "buffer_load_beyond",
        "of a 16-byte raw buffer load across num_records, dwords inside are loaded and those beyond are 0",
        (_LOADER + "buffer_load", "csrc/simulator/execute/buffer.cpp"),
        _range_of_load,
        _expected_range_of_load,
    ),
    Fact(
        "buffer_load_soffset",
        "soffset counts in the range check of a raw buffer load",
        (_LOADER + "buffer::scalar_offset", "csrc/simulator/execute/buffer.cpp"),
        _scalar_offset_of_load,
        _expected_scalar_offset_of_load,
    ),
    Fact(
        "buffer_store_beyond",
        "of a 16-byte raw buffer store across num_records, soffset counted, dwords inside are stored and no others",
        (_LOADER + "buffer_store", "csrc/simulator/execute/buffer.cpp"),
        _range_of_store,
        _expected_range_of_store,
    ),
    *_direct_facts(4),
    *_direct_facts(16),
]
