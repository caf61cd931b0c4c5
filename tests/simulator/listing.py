"""The instructions in a code object's text section with their offsets in the file."""

from __future__ import annotations

import ctypes
import dataclasses
import struct

from tests.simulated_device import library


@dataclasses.dataclass(frozen=True)
class Line:
    """One instruction: byte offset in the file, length in bytes, LLVM's text."""

    offset: int
    size: int
    text: str

    @property
    def mnemonic(self) -> str:
        return self.text.split()[0]


def text_section(image: bytes) -> tuple[int, int]:
    """File offset and size of .text (ELF64, little endian)."""
    (headers,) = struct.unpack_from("<Q", image, 0x28)
    count, names_index = struct.unpack_from("<HH", image, 0x3C)
    sections = [struct.unpack_from("<IIQQQQ", image, headers + 64 * i) for i in range(count)]
    names = sections[names_index][4]
    for name, _, _, _, offset, size in sections:
        if image[names + name : names + name + 6] == b".text\0":
            return offset, size
    raise ValueError("no .text section")


def listing(image: bytes, target: str) -> list[Line]:
    """Every instruction up to the padding after the last s_endpgm."""
    offset, size = text_section(image)
    end, lines, buffer = offset + size, [], ctypes.create_string_buffer(512)
    while offset < end:
        taken = library().hipkittens_disassemble(
            int(target[3:]),
            image[offset : min(offset + 16, end)],
            ctypes.c_size_t(min(16, end - offset)),
            buffer,
            ctypes.c_size_t(512),
        )
        if taken == 0:
            raise ValueError(f"no instruction at {offset:#x}: {image[offset : offset + 8].hex()}")
        lines.append(Line(offset, taken, buffer.value.decode()))
        offset += taken
    last = max(i for i, line in enumerate(lines) if line.mnemonic == "s_endpgm")
    return lines[: last + 1]
