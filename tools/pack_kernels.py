#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Packs the code objects of one target: an index in JSON, then all objects as one xz stream.

    8 bytes   "HKPACK01"
    8 bytes   length of the index, little endian
    32 bytes  sha256 of the index
    index     JSON: target, compiler, sha256 and length of the unpacked stream, one entry per code object
    stream    xz of the objects end to end, in the order of the index

One stream and not one per object, because variants of a kernel are near copies of each other. The same objects give
the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import struct
from pathlib import Path

MAGIC = b"HKPACK01"
NOTE_AMDGPU_METADATA = 32  # NT_AMDGPU_METADATA: msgpack


def unpack_msgpack(data: bytes, at: int = 0) -> tuple[object, int]:
    """One msgpack value and where it ends: the subset that compilers write in the metadata note."""
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


def describe_kernels(image: bytes) -> list[dict]:
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


def pack(target: str, objects: list[Path]) -> bytes:
    entries, images, offset = [], [], 0
    for path in sorted(objects, key=lambda path: path.name):
        image = path.read_bytes()
        entry = json.loads(path.with_suffix(".json").read_text())
        if entry["target"] != target:
            raise SystemExit(f"{path} was built for {entry['target']}, not {target}")
        entry |= {
            "offset": offset,
            "bytes": len(image),
            "sha256": hashlib.sha256(image).hexdigest(),
            "kernels": describe_kernels(image),
        }
        entries.append(entry)
        images.append(image)
        offset += len(image)
    stream = b"".join(images)
    index = json.dumps(
        {
            "format": 1,
            "target": target,
            "stream_bytes": len(stream),
            "stream_sha256": hashlib.sha256(stream).hexdigest(),
            "objects": entries,
        },
        sort_keys=True,
        separators=(",", ":"),
    ).encode()
    compressed = lzma.compress(
        stream, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, preset=9 | lzma.PRESET_EXTREME
    )
    return MAGIC + struct.pack("<Q", len(index)) + hashlib.sha256(index).digest() + index + compressed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--objects", required=True, type=Path, help="a file with one path per line")
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    objects = [Path(line) for line in arguments.objects.read_text().splitlines() if line]
    packed = pack(arguments.target, objects)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_bytes(packed)
    raw = sum(path.stat().st_size for path in objects)
    print(f"{arguments.target}: {len(objects)} code objects, {raw} bytes, packed {len(packed)}")


if __name__ == "__main__":
    main()
