# SPDX-License-Identifier: MIT
"""The machine code in a code object, and its instructions as text."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from . import _simulator


def code(image: bytes) -> Iterator[tuple[int, bytes]]:
    """(address, bytes) of each executable section of an ELF64 code object."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry_bytes, count = struct.unpack_from("<HH", image, 0x3A)
    for number in range(count):
        _, kind, flags, address, offset, size = struct.unpack_from(
            "<IIQQQQ", image, table + number * entry_bytes
        )
        if kind == 1 and flags & 4:  # SHT_PROGBITS, SHF_EXECINSTR
            yield address, image[offset : offset + size]


def disassembled(target: str, address: int, code: bytes) -> Iterator[tuple[int, bytes, str]]:
    """(address, bytes, text) of each instruction; bytes that are not an instruction become a `.long`."""
    at = 0
    while at < len(code):
        length, text = _simulator.disassemble(int(target.removeprefix("gfx")), code[at : at + 16])
        if length == 0:
            length, text = 4, f".long 0x{int.from_bytes(code[at : at + 4], 'little'):08x}"
        yield address + at, code[at : at + length], text
        at += length
