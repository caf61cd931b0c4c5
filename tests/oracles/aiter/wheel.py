# SPDX-License-Identifier: MIT
"""AITER's code objects as its wheel ships them. The package is read, never imported: its Python needs ROCm."""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib.metadata
import os
import pathlib
import struct

import pytest

DISTRIBUTION, VERSION = "amd-aiter", "0.1.7.post2.dev18"
FOLDER = "aiter_meta/hsa/"


@functools.cache
def objects() -> dict[str, pathlib.Path]:
    """Path of every code object by its name, such as gfx942/layer_norm.co; empty without the wheel."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return {}
    if distribution.version != VERSION:
        return {}
    found = (file for file in distribution.files or () if file.suffix == ".co")
    return {str(file).removeprefix(FOLDER): pathlib.Path(str(file.locate())) for file in found}


HOW_TO_INSTALL = f"needs AITER's code objects: pip install --no-deps {DISTRIBUTION}=={VERSION}"
# Set by .ci/run: there, tests without the wheel fail instead of being skipped.
REQUIRED = "REQUIRE_AITER_WHEEL"


def missing() -> str | None:
    """Why continuous integration must fail: it requires the wheel, and the wheel is missing."""
    if not os.environ.get(REQUIRED) or objects():
        return None
    return f"{REQUIRED} is set, and the wheel is not installed: {HOW_TO_INSTALL}"


needs_wheel = pytest.mark.skipif(not objects(), reason=HOW_TO_INSTALL)


@functools.cache
def in_tables() -> frozenset[str]:
    """The objects named by the tables of AITER's host code (hsa/*/*.csv), from which it chooses what to launch."""
    named = set()
    for file in importlib.metadata.distribution(DISTRIBUTION).files or ():
        if file.suffix != ".csv" or not str(file).startswith(FOLDER):
            continue
        folder = str(file.parent).removeprefix(FOLDER)
        with open(str(file.locate()), newline="") as table:
            for row in csv.DictReader(table):
                named |= {f"{folder}/{row[key]}" for key in ("knl_file", "co_name") if row.get(key)}
    return frozenset(named & objects().keys())


@dataclasses.dataclass(frozen=True)
class Argument:
    name: str
    offset: int
    bytes: int
    pointer: bool


@dataclasses.dataclass(frozen=True)
class Metadata:
    """The metadata of a code object's one kernel."""

    name: str
    arguments: tuple[Argument, ...]
    argument_bytes: int
    workgroup: tuple[int, ...]
    lds_bytes: int


def metadata(code: bytes) -> Metadata:
    (kernel,) = _read_message(_metadata_note(code))["amdhsa.kernels"]
    return Metadata(
        kernel[".name"],
        tuple(
            Argument(
                entry[".name"], entry[".offset"], entry[".size"], entry[".value_kind"] == "global_buffer"
            )
            for entry in kernel[".args"]
        ),
        kernel[".kernarg_segment_size"],
        tuple(kernel[".reqd_workgroup_size"]),
        kernel[".group_segment_fixed_size"],
    )


def text_section(code: bytes) -> tuple[int, int]:
    """Offset of .text in the file, and its length."""
    table, entry_bytes, count, names = _section_headers(code)
    names_at = struct.unpack_from("<Q", code, table + names * entry_bytes + 24)[0]
    for index in range(count):
        header = table + index * entry_bytes
        at = names_at + struct.unpack_from("<I", code, header)[0]
        if code[at : code.index(b"\0", at)] == b".text":
            return struct.unpack_from("<QQ", code, header + 24)
    raise ValueError("the code object has no .text")


def _section_headers(code: bytes) -> tuple[int, int, int, int]:
    table = struct.unpack_from("<Q", code, 40)[0]
    return table, *struct.unpack_from("<HHH", code, 58)


def _metadata_note(code: bytes) -> bytes:
    table, (entry_bytes, count) = struct.unpack_from("<Q", code, 32)[0], struct.unpack_from("<HH", code, 54)
    for index in range(count):
        header = table + index * entry_bytes
        if struct.unpack_from("<I", code, header)[0] != 4:  # PT_NOTE
            continue
        at, size = (
            struct.unpack_from("<Q", code, header + 8)[0],
            struct.unpack_from("<Q", code, header + 32)[0],
        )
        end = at + size
        while at < end:
            name_bytes, bytes_, kind = struct.unpack_from("<III", code, at)
            begin = at + 12 + (name_bytes + 3) // 4 * 4
            if kind == 32:  # NT_AMDGPU_METADATA
                return code[begin : begin + bytes_]
            at = begin + (bytes_ + 3) // 4 * 4
    raise ValueError("the code object has no metadata note")


def _read_message(data: bytes):
    """MessagePack, as far as kernel metadata goes (github.com/msgpack/msgpack/blob/master/spec.md)."""
    sized = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    strings, arrays, maps = (
        {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"},
        {0xDC: ">H", 0xDD: ">I"},
        {0xDE: ">H", 0xDF: ">I"},
    )
    position = 0

    def take(form: str):
        nonlocal position
        (value,) = struct.unpack_from(form, data, position)
        position += struct.calcsize(form)
        return value

    def text(size: int) -> str:
        nonlocal position
        position += size
        return data[position - size : position].decode()

    def value():
        first = take(">B")
        if first < 0x80:
            return first
        if first < 0x90:
            return {value(): value() for _ in range(first & 15)}
        if first < 0xA0:
            return [value() for _ in range(first & 15)]
        if first < 0xC0:
            return text(first & 31)
        if first >= 0xE0:
            return first - 256
        if first in sized:
            return take(sized[first])
        if first in strings:
            return text(take(strings[first]))
        if first in arrays:
            return [value() for _ in range(take(arrays[first]))]
        if first in maps:
            return {value(): value() for _ in range(take(maps[first]))}
        return {0xC0: None, 0xC2: False, 0xC3: True}[first]

    return value()
