#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Packs the code objects of one target: an index in JSON, then all objects as one xz stream.

    8 bytes   "HKPACK01"
    8 bytes   length of the index, little endian
    32 bytes  sha256 of the index
    index     JSON: target, sha256 and length of the unpacked stream, one entry per code object, the fields of the argument
              struct of each kind of kernels
    stream    xz of the concatenated objects, in the order of the index

One stream for all objects, because variants of a kernel are near copies of each other. The same objects give
the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import kernel_layouts
from package_module import package_module

describe_kernels = package_module("_code_object").describe_kernels

MAGIC = b"HKPACK01"


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
    compiler = kernel_layouts.DeviceCompiler()
    arguments = {
        f"{operation}.{kind}": fields
        for operation in sorted({entry["operation"] for entry in entries})
        for kind, fields in kernel_layouts.arguments(compiler, target, operation).items()
    }
    index = json.dumps(
        {
            "format": 1,
            "target": target,
            "stream_bytes": len(stream),
            "stream_sha256": hashlib.sha256(stream).hexdigest(),
            "arguments": arguments,
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
