# SPDX-License-Identifier: MIT
"""The parameters of a kernel as declared in its C++ source, and Python values laid out as its argument segment."""

from __future__ import annotations

import ctypes
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

# Spellings of a type, including those of csrc/tiles, and the dtype that a tensor for such a pointer must have. Types without a
# corresponding dtype (void, structs, a byte of a packed format) accept any tensor.
_POINTEES = {
    "bf16": torch.bfloat16,
    "__bf16": torch.bfloat16,
    "half": torch.float16,
    "_Float16": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "int8_t": torch.int8,
    "signed char": torch.int8,
    "uint8_t": torch.uint8,
    "unsigned char": torch.uint8,
    "short": torch.int16,
    "int16_t": torch.int16,
    "int": torch.int32,
    "int32_t": torch.int32,
    "long": torch.int64,
    "long long": torch.int64,
    "int64_t": torch.int64,
    "bool": torch.bool,
}
# struct's format letters for values passed by value.
_SCALARS = {
    "float": "f",
    "double": "d",
    "bool": "?",
    "int8_t": "b",
    "uint8_t": "B",
    "short": "h",
    "int16_t": "h",
    "unsigned short": "H",
    "uint16_t": "H",
    "int": "i",
    "int32_t": "i",
    "unsigned int": "I",
    "uint32_t": "I",
    "long": "q",
    "long long": "q",
    "int64_t": "q",
    "unsigned long": "Q",
    "unsigned long long": "Q",
    "uint64_t": "Q",
    "size_t": "Q",
}


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, its C++ type, and its offset in the argument segment (bytes)."""

    name: str
    type: str
    offset: int
    size: int

    @property
    def is_pointer(self) -> bool:
        return self.type.endswith("*")

    @property
    def is_constant(self) -> bool:
        return self.is_pointer and self.type.startswith("const ")

    @property
    def _bare(self) -> str:
        text = self.type.removesuffix("*").strip().removeprefix("const ").strip()
        return text.rpartition("::")[2]

    @property
    def dtype(self) -> torch.dtype | None:
        """The required dtype of a tensor; None: any."""
        return _POINTEES.get(self._bare) if self.is_pointer else None

    def pack(self, where: str, value: Any) -> bytes:
        """`value` as stored in the argument segment. Raises TypeError, ValueError."""
        what = f"{where}: {self.name} ({self.type})"
        if self.is_pointer:
            if value is None:
                return bytes(8)
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"{what} is {type(value).__name__}; it must be a torch.Tensor or None")
            if self.dtype is not None and value.dtype != self.dtype:
                raise TypeError(f"{what} is a tensor of {value.dtype}; it must be {self.dtype}")
            return struct.pack("<Q", value.data_ptr())
        letter = _SCALARS.get(self._bare)
        if letter is None:
            data = bytes(value) if isinstance(value, bytes | bytearray | ctypes.Structure) else None
            if data is None or len(data) != self.size:
                got = type(value).__name__ if data is None else f"{len(data)} bytes"
                raise TypeError(
                    f"{what} is {got}; it must be bytes or a ctypes.Structure of {self.size} bytes"
                )
            return data
        if isinstance(value, bool) != (letter == "?") or not isinstance(
            value, (int, float) if letter in "fd" else int
        ):
            kind = "bool" if letter == "?" else "float" if letter in "fd" else "int"
            raise TypeError(f"{what} is {value!r} ({type(value).__name__}); it must be a Python {kind}")
        try:
            return struct.pack(f"<{letter}", value)
        except (struct.error, OverflowError):
            raise ValueError(f"{what} is {value!r}, which does not fit {self.size} bytes") from None


def declared(syntax_tree: str, symbol: str) -> list[tuple[str, str]]:
    """(name, type) of each parameter of the kernel `symbol`, from clang's -ast-dump=json."""
    decoder, at = json.JSONDecoder(), 0
    while (at := syntax_tree.find("{", at)) >= 0:
        node, at = decoder.raw_decode(syntax_tree, at)
        if node.get("kind") == "FunctionDecl" and node.get("mangledName") == symbol:
            return [
                (inner.get("name", f"argument {number}"), re.sub(r"\s*\*$", " *", inner["type"]["qualType"]))
                for number, inner in enumerate(
                    inner for inner in node.get("inner", ()) if inner["kind"] == "ParmVarDecl"
                )
            ]
    return []


def placed(parameters: Sequence[tuple[str, str]], arguments: Sequence[dict[str, Any]]) -> list[Parameter]:
    """Declared parameters at the offsets given by the code object's metadata."""
    return [
        Parameter(name, type_, argument["offset"], argument["size"])
        for (name, type_), argument in zip(
            parameters,
            [each for each in arguments if not each["value_kind"].startswith("hidden_")],
            strict=True,
        )
    ]


def pack(where: str, parameters: Sequence[Parameter], values: Sequence[Any]) -> bytes:
    """The argument segment. Raises TypeError, ValueError with the parameter's name."""
    if len(values) != len(parameters):
        wanted = ", ".join(f"{each.type} {each.name}".replace("* ", "*") for each in parameters)
        raise TypeError(f"{where}: {len(values)} arguments; it has {len(parameters)}: {wanted}")
    segment = bytearray(max((each.offset + each.size for each in parameters), default=0))
    for parameter, value in zip(parameters, values, strict=True):
        segment[parameter.offset : parameter.offset + parameter.size] = parameter.pack(where, value)
    return bytes(segment)


def to_json(parameters: Sequence[Parameter]) -> list[dict[str, Any]]:
    return [asdict(each) for each in parameters]


def from_json(rows: Sequence[dict[str, Any]]) -> list[Parameter]:
    return [Parameter(**row) for row in rows]
