# SPDX-License-Identifier: MIT
"""The kernels described in a code object's metadata note, as Python data. Standard library only: the build uses it too."""

from __future__ import annotations

import hashlib
import struct

NOTE_AMDGPU_METADATA = 32  # NT_AMDGPU_METADATA: msgpack


def unpack_msgpack(data: bytes, at: int = 0) -> tuple[object, int]:
    """One msgpack value and the position after it: the subset that compilers write in the metadata note."""
    tag = data[at]
    at += 1
    if tag <= 0x7F:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag == 0xC0:
        return None, at
    if tag in (0xC2, 0xC3):
        return tag == 0xC3, at
    integers = {
        0xCC: ">B",
        0xCD: ">H",
        0xCE: ">I",
        0xCF: ">Q",
        0xD0: ">b",
        0xD1: ">h",
        0xD2: ">i",
        0xD3: ">q",
    }
    if tag in integers:
        return struct.unpack_from(integers[tag], data, at)[0], at + struct.calcsize(integers[tag])
    lengths = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}
    if 0xA0 <= tag <= 0xBF:
        kind, length = "text", tag & 0x1F
    elif 0x90 <= tag <= 0x9F:
        kind, length = "list", tag & 0x0F
    elif 0x80 <= tag <= 0x8F:
        kind, length = "map", tag & 0x0F
    elif tag in lengths:
        kind = "text" if tag <= 0xDB else "list" if tag <= 0xDD else "map"
        length = struct.unpack_from(lengths[tag], data, at)[0]
        at += struct.calcsize(lengths[tag])
    else:
        raise ValueError(f"msgpack tag 0x{tag:02x} at {at - 1}")
    if kind == "text":
        return data[at : at + length].decode(), at + length
    if kind == "list":
        items = []
        for _ in range(length):
            item, at = unpack_msgpack(data, at)
            items.append(item)
        return items, at
    table = {}
    for _ in range(length):
        key, at = unpack_msgpack(data, at)
        table[key], at = unpack_msgpack(data, at)
    return table, at


def metadata(image: bytes) -> dict:
    """The AMDGPU metadata note of an ELF64 code object."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian ELF64 file")
    table, entry_bytes, count = (
        struct.unpack_from("<Q", image, 0x20)[0],
        *struct.unpack_from("<HH", image, 0x36),
    )
    for number in range(count):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", image, table + number * entry_bytes)
        if kind != 4:  # PT_NOTE
            continue
        at, end = offset, offset + size
        while at + 12 <= end:
            name_bytes, data_bytes, note = struct.unpack_from("<III", image, at)
            data_at = at + 12 + (name_bytes + 3) // 4 * 4
            if note == NOTE_AMDGPU_METADATA and image[at + 12 : at + 12 + name_bytes] == b"AMDGPU\0":
                return unpack_msgpack(image[data_at : data_at + data_bytes])[0]
            at = data_at + (data_bytes + 3) // 4 * 4
    raise ValueError("no AMDGPU metadata note")


def loaded_sha256(image: bytes) -> str:
    """sha256 of what a GPU loads of an ELF64 code object: everything but line tables, symbols and the file's own headers."""
    section_headers = struct.unpack_from("<Q", image, 0x28)[0]
    entry_bytes, count = struct.unpack_from("<HH", image, 0x3A)
    digest = hashlib.sha256()
    for number in range(count):
        _, kind, flags, _, offset, size = struct.unpack_from(
            "<IIQQQQ", image, section_headers + number * entry_bytes
        )
        if flags & 2 and kind != 8:  # SHF_ALLOC, but for SHT_NOBITS
            digest.update(image[offset : offset + size])
    return digest.hexdigest()


def describe_kernels(image: bytes) -> list[dict]:
    """Symbol, registers, memory and arguments of each kernel of a code object."""
    kernels = []
    for kernel in metadata(image)["amdhsa.kernels"]:
        kernels.append(
            {
                "symbol": kernel[".name"],
                "vgprs": kernel[".vgpr_count"],
                "agprs": kernel.get(".agpr_count", 0),
                "sgprs": kernel[".sgpr_count"],
                "vgpr_spills": kernel.get(".vgpr_spill_count", 0),
                "sgpr_spills": kernel.get(".sgpr_spill_count", 0),
                "lds_bytes": kernel[".group_segment_fixed_size"],
                "scratch_bytes": kernel[".private_segment_fixed_size"],
                "workgroup_size": kernel[".max_flat_workgroup_size"],
                "argument_bytes": kernel[".kernarg_segment_size"],
                "arguments": [
                    {
                        key[1:]: argument[key]
                        for key in (".name", ".offset", ".size", ".value_kind")
                        if key in argument
                    }
                    for argument in kernel.get(".args", [])
                ],
            }
        )
    return kernels
