# SPDX-License-Identifier: MIT
"""Reads the packs of code objects that tools/pack_kernels.py writes. Every byte is covered by a sha256."""

from __future__ import annotations

import hashlib
import json
import lzma
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

MAGIC = b"HKPACK01"
_HEADER_BYTES = 8 + 8 + 32
# Far above any real pack; keeps a corrupt number from requesting all memory.
_MOST_STREAM_BYTES = 1 << 30


class PackError(RuntimeError):
    """A pack is missing, truncated or modified."""


def _what_is_wrong(index: Any) -> str:
    """Why this version cannot read a decoded index, or ''."""
    if not isinstance(index, dict):
        return "it is no object"
    if index.get("format") != 1:
        return f"format {index.get('format')}, this version reads 1"
    if not isinstance(index.get("arguments"), dict):
        return "arguments is missing or no object"

    def is_size(value: Any) -> bool:
        return isinstance(value, int) and 0 <= value <= _MOST_STREAM_BYTES

    if not is_size(index.get("stream_bytes")) or not isinstance(index.get("stream_sha256"), str):
        return "stream_bytes or stream_sha256 is missing or impossible"
    if not isinstance(index.get("objects"), list):
        return "objects is no list"
    for number, entry in enumerate(index["objects"]):
        if not (
            isinstance(entry, dict)
            and isinstance(entry.get("name"), str)
            and isinstance(entry.get("sha256"), str)
            and is_size(entry.get("offset"))
            and is_size(entry.get("bytes"))
            and isinstance(entry.get("kernels"), list)
            and all(isinstance(k, dict) and isinstance(k.get("symbol"), str) for k in entry["kernels"])
        ):
            return f"name, sha256, offset, bytes or kernels of object {number} is missing or impossible"
        configuration = entry.get("configuration")
        kind = configuration.get("kind") if isinstance(configuration, dict) else None
        if f"{entry.get('operation')}.{kind}" not in index["arguments"]:
            return f"arguments has no fields for object {number}"
    return ""


@dataclass(frozen=True)
class Pack:
    path: Path

    @cached_property
    def _file(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise PackError(f"{self.path}: {error.strerror}; reinstall hipkittens") from None

    @cached_property
    def index(self) -> dict[str, Any]:
        data = self._file
        if data[:8] != MAGIC or len(data) < _HEADER_BYTES:
            raise PackError(f"{self.path}: not a hipkittens pack; reinstall hipkittens")
        (length,) = struct.unpack_from("<Q", data, 8)
        text = data[_HEADER_BYTES : _HEADER_BYTES + length]
        if hashlib.sha256(text).digest() != data[16:48]:
            raise PackError(
                f"{self.path}: its index does not have the sha256 it was written with; reinstall hipkittens"
            )
        try:
            index = json.loads(text)
            if isinstance(index, dict) and index.get("format", 1) != 1:
                raise PackError(
                    f"{self.path}: format {index['format']}, this version reads 1; reinstall hipkittens"
                )
            wrong = _what_is_wrong(index)
        except (ValueError, RecursionError) as error:
            wrong = str(error)
        if wrong:
            raise PackError(f"{self.path}: its index cannot be read ({wrong}); reinstall hipkittens")
        return index

    @cached_property
    def _stream(self) -> bytes:
        (length,) = struct.unpack_from("<Q", self._file, 8)
        expected = self.index["stream_bytes"]
        try:
            decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
            data = decoder.decompress(self._file[_HEADER_BYTES + length :], max_length=expected + 1)
        except lzma.LZMAError as error:
            raise PackError(
                f"{self.path}: the code objects cannot be unpacked ({error}); reinstall hipkittens"
            ) from None
        if len(data) != expected or not decoder.eof or decoder.unused_data:
            raise PackError(
                f"{self.path}: {len(data)} bytes of code objects, {expected} expected; reinstall hipkittens"
            )
        return data

    @cached_property
    def entries(self) -> list[dict[str, Any]]:
        """One per code object. "arguments": the fields of the kernel's argument struct, shared by kernels of one kind."""
        fields = self.index["arguments"]
        return [
            entry | {"arguments": fields[f"{entry['operation']}.{entry['configuration']['kind']}"]}
            for entry in self.index["objects"]
        ]

    def entry(self, name: str) -> dict[str, Any]:
        for entry in self.entries:
            if entry["name"] == name or any(kernel["symbol"] == name for kernel in entry["kernels"]):
                return entry
        raise KeyError(name)

    def image(self, entry: dict[str, Any]) -> bytes:
        """The code object, checked against its sha256."""
        image = self._stream[entry["offset"] : entry["offset"] + entry["bytes"]]
        if hashlib.sha256(image).hexdigest() != entry["sha256"]:
            raise PackError(f"{self.path}: {entry['name']} does not have its sha256; reinstall hipkittens")
        return image

    def verify(self) -> int:
        """Checks every hash; returns the number of code objects."""
        for entry in self.entries:
            self.image(entry)
        if hashlib.sha256(self._stream).hexdigest() != self.index["stream_sha256"]:
            raise PackError(f"{self.path}: the code objects do not have their sha256; reinstall hipkittens")
        return len(self.entries)
