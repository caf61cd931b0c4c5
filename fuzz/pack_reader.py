#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fuzz target for the pack reader: any bytes are either refused with a PackError or readable as a pack. Runs under atheris.

The first byte selects how much of the corruption is repaired before the pack is read: with matching sha256 digests a mutation
reaches the code after the digest checks. Bit 0: repair the index's digest. Bit 1: the rest is an index, and the stream is packed
anew from zeros.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def load_pack_module():
    """Load hipkittens/_pack.py without importing the package, which would load libraries."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("hipkittens_pack", ROOT / "hipkittens" / "_pack.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclass
    spec.loader.exec_module(module)
    return module


class PackBytes:
    """A path whose bytes are in memory."""

    def __init__(self, data: bytes):
        self._data = data

    def read_bytes(self) -> bytes:
        return self._data

    def __str__(self) -> str:
        return "fuzzed.hkpack"


STREAM = bytes(range(256))


def pack_of(module, data: bytes) -> bytes:
    """The pack that a fuzz input encodes."""
    if not data:
        return data
    choice, body = data[0], data[1:]
    if choice & 2:
        return (
            module.MAGIC
            + struct.pack("<Q", len(body))
            + hashlib.sha256(body).digest()
            + body
            + lzma.compress(STREAM, lzma.FORMAT_XZ)
        )
    if choice & 1 and len(body) >= 48:
        (length,) = struct.unpack_from("<Q", body, 8)
        index = body[48 : 48 + length]
        return body[:16] + hashlib.sha256(index).digest() + body[48:]
    return body


def check(module, data: bytes) -> None:
    """Raise anything that is not a PackError (or the KeyError of an unknown name)."""
    pack = module.Pack(PackBytes(pack_of(module, data)))
    try:
        count = pack.verify()
    except module.PackError as error:
        assert str(error).startswith("fuzzed.hkpack: "), error
        return
    assert count == len(pack.entries)
    for entry in pack.entries:
        assert pack.entry(entry["name"])["name"] == entry["name"]
    try:
        pack.entry("no such kernel")
    except KeyError:
        return
    raise AssertionError("a kernel that is not there was found")


def seeds() -> dict[str, bytes]:
    """A small complete pack, and its index alone."""
    image = STREAM[:64]
    index = {
        "format": 1,
        "stream_bytes": len(STREAM),
        "stream_sha256": hashlib.sha256(STREAM).hexdigest(),
        "objects": [
            {"name": "a", "offset": 0, "bytes": len(image), "sha256": hashlib.sha256(image).hexdigest(),
             "operation": "an_operation", "configuration": {"kind": "a_kind"}, "kernels": [{"symbol": "a_kernel"}]}
        ],
        "arguments": {"an_operation.a_kind": []},
    }  # fmt: skip
    text = json.dumps(index).encode()
    whole = (
        b"HKPACK01"
        + struct.pack("<Q", len(text))
        + hashlib.sha256(text).digest()
        + text
        + lzma.compress(STREAM)
    )
    return {"whole": b"\0" + whole, "whole_repaired": b"\1" + whole, "index": b"\2" + text}


def main() -> None:
    import atheris

    sys.path.insert(0, str(ROOT / "hipkittens"))  # atheris instruments what is imported by name
    with atheris.instrument_imports(include=["_pack"]):
        import _pack as module
    atheris.Setup(sys.argv, lambda data: check(module, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
