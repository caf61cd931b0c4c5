# SPDX-License-Identifier: MIT
"""The fields of each kind's argument struct, by name, as clang lays them out for csrc/kernels/layouts.cpp."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import kernel_variants
from package_module import package_module

DeviceCompiler = package_module("_device_compiler").DeviceCompiler

_KERNELS = kernel_variants.ROOT / "csrc" / "kernels"
_RECORD = re.compile(r"\*\*\* Dumping AST Record Layout\n(.*?)\n\s*\| \[sizeof=(\d+)", re.S)
# Offset, bits of a bit field, indentation (two per level), type, elements of an array, name.
_FIELD = re.compile(r"\s*(\d+)(?::(\d+)-(\d+))? \|( +)(.*?)((?:\[\d+\])*) (\w+)$")
# Offset, indentation and type of a base class with fields.
_BASE = re.compile(r"\s*(\d+) \|( +)(.*) \(base\)$")
_BYTES = {"_Bool": 1, "char": 1, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8}


def _bytes_of(kind: str) -> int:
    """Size in bytes of a type that is not a struct. Enumerations are int32_t wide."""
    if kind.endswith("*"):
        return 8
    if kind.startswith("enum "):
        return 4
    return _BYTES[kind.removeprefix("const ").removeprefix("unsigned ").removeprefix("signed ")]


class _Records:
    """The structs of a dump, by name."""

    def __init__(self, dump: str) -> None:
        self._fields, self._bases, self._bytes = {}, {}, {}
        for body, size in _RECORD.findall(dump):
            head, *lines = body.splitlines()
            name = re.sub(r" \(empty\)$", "", head.split(" | ", 1)[1])
            self._bytes[name] = int(size)
            matches = [_FIELD.match(line) for line in lines]
            # The fields of inner structs are indented further; their own records have them too.
            self._fields[name] = [match for match in matches if match and len(match[4]) == 3]
            bases = [_BASE.match(line) for line in lines]
            self._bases[name] = [match for match in bases if match and len(match[2]) == 3]

    def names(self) -> list[str]:
        return list(self._fields)

    def flat(self, record: str, prefix: str = "", at: int = 0) -> list[dict[str, int | str]]:
        """Every field that is not a struct, those of bases first: {"name", "offset", "size"}. Names of inner fields, and of array elements,
        follow a dot; bit fields also have "bit" and "bits"."""
        result: list[dict[str, int | str]] = []
        for base in self._bases[record]:
            result += self.flat(base[3], prefix, at + int(base[1]))
        for field in self._fields[record]:
            offset, first_bit, last_bit, _, kind, extents, name = field.groups()
            is_record = kind in self._fields
            size = self._bytes[kind] if is_record else _bytes_of(kind)
            elements = [prefix + name]
            for extent in re.findall(r"\d+", extents):
                elements = [f"{element}.{i}" for element in elements for i in range(int(extent))]
            for number, element in enumerate(elements):
                place = at + int(offset) + number * size
                if is_record:
                    result += self.flat(kind, element + ".", place)
                else:
                    result.append({"name": element, "offset": place, "size": size})
            if first_bit is not None:
                bits = int(last_bit) - int(first_bit) + 1
                # The bytes that hold it, which may be fewer than its type has.
                result[-1] |= {"bit": int(first_bit), "bits": bits, "size": int(last_bit) // 8 + 1}
        return result


def arguments(compiler: DeviceCompiler, target: str, operation: str) -> dict[str, list[dict[str, int | str]]]:
    """The fields of the host's arguments for each kind of rows, in order."""
    done = compiler.front_end(
        target, _KERNELS / "layouts.cpp", f"-DHIPKITTENS_OPERATION={operation}", f"-I{_KERNELS / operation}",
        "-fsyntax-only", "-Xclang", "-fdump-record-layouts-canonical",
    )  # fmt: skip
    records = _Records(done.stdout)
    layouts = {
        match[1]: name for name in records.names() if (match := re.search(r"::Layout<.*::(\w+)>$", name))
    }
    result = {}
    variants = _KERNELS / operation / "variants.def"
    for row in kernel_variants.read(variants):
        if row["kind"] in result:
            continue
        fields = records.flat(layouts[row["kind"]])
        columns = [name for name in row if name not in ("kind", "name", "targets")]
        names = [
            field["name"].removeprefix("config.") for field in fields if field["name"].startswith("config.")
        ]
        if names != columns:
            raise SystemExit(
                f"{variants}: {row['kind']} has the columns {columns}, its configuration {names}"
            )
        result[row["kind"]] = [
            field | {"name": field["name"].removeprefix("arguments.")}
            for field in fields
            if field["name"].startswith("arguments.")
        ]
    return result
