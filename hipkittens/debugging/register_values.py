# SPDX-License-Identifier: MIT
"""Bytes of registers, LDS and tensors as numbers of a type."""

from __future__ import annotations

from collections.abc import Callable

import torch

DTYPES = {
    "u8": torch.uint8, "i8": torch.int8, "u16": torch.uint16, "i16": torch.int16, "u32": torch.uint32, "i32": torch.int32,
    "u64": torch.uint64, "i64": torch.int64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "e4m3fn": torch.float8_e4m3fn, "e4m3fnuz": torch.float8_e4m3fnuz, "e5m2": torch.float8_e5m2, "e5m2fnuz": torch.float8_e5m2fnuz,
}  # fmt: skip
LANES = 64


def dtype_named(name: str) -> torch.dtype:
    """ValueError for a name that is not in DTYPES."""
    if name not in DTYPES:
        raise ValueError(f"{name!r} is no type; allowed: {', '.join(DTYPES)}")
    return DTYPES[name]


class VectorRegisters:
    """Consecutive vector registers, `raw` (registers, 64 lanes, 4 bytes).

    An attribute named like a type gives its numbers: v3.f32 (64), v[0:4].f32 (4, 64), v3.f16 (64, 2) since a lane holds two, v[0:2].f64
    (1, 64). [lane] is one lane's dword, a list for several registers.
    """

    def __init__(self, raw: torch.Tensor, name: str) -> None:
        self.raw, self.name = raw, name

    def __getattr__(self, name: str) -> torch.Tensor:
        if name not in DTYPES:
            raise AttributeError(f"{self.name} has no type {name!r}; allowed: {', '.join(DTYPES)}")
        return self.of(DTYPES[name])

    def of(self, dtype: torch.dtype) -> torch.Tensor:
        registers = self.raw.shape[0]
        size = dtype.itemsize
        if size == 8:
            if registers % 2:
                raise ValueError(
                    f"{self.name} is {registers} registers; a 64-bit number takes two, such as v[0:2]"
                )
            pairs = self.raw.reshape(registers // 2, 2, LANES, 4).transpose(1, 2)
            values = pairs.reshape(registers // 2, LANES, 8).view(dtype).squeeze(-1)
        else:
            values = self.raw.contiguous().view(dtype)
            if size == 4:
                values = values.squeeze(-1)
        return values[0] if values.shape[0] == 1 else values

    def __getitem__(self, lane: int) -> int | list[int]:
        if not 0 <= lane < LANES:
            raise ValueError(f"lane {lane}; a wave has lanes 0 to {LANES - 1}")
        values = [int(value) for value in self.raw[:, lane].contiguous().view(torch.int32).flatten()]
        values = [value & 0xFFFFFFFF for value in values]
        return values[0] if len(values) == 1 else values

    def tile(
        self, shape: str, dtype: str = "f32", layout: str | None = None, columns: int = 1
    ) -> torch.Tensor:
        """The matrix held by a register tile of base tiles `shape`, `columns` of them next to each other.

        shape    16x32, 32x16 (16-bit operands), 16x4 (f32 operands), 16x16, 32x32 (accumulators): csrc/tiles/lane_layout.h
        layout   "row": a lane owns a row; "col": a column. None: "col" for accumulators, "row" for operands
        """
        if shape not in _BASE_TILES:
            raise ValueError(f"{shape!r} is no base tile; allowed: {', '.join(_BASE_TILES)}")
        rows, cols, run = _BASE_TILES[shape]
        layout = layout or ("col" if rows == cols else "row")
        if layout not in ("row", "col"):
            raise ValueError(f"layout is {layout!r}; allowed: 'row', 'col'")
        values = self.of(dtype_named(dtype))
        # (registers, lanes, numbers in a dword) to (lanes, elements in the order of the registers)
        values = values.reshape(self.raw.shape[0], LANES, -1).transpose(0, 1).reshape(LANES, -1)
        elements = rows * cols // LANES
        count = values.shape[1] // elements
        if count == 0 or values.shape[1] % elements or count % columns:
            raise ValueError(
                f"{self.name} holds {values.shape[1]} {dtype} a lane; a {shape} tile takes {elements}, and there are {columns} beside "
                "each other"
            )
        lane, element = torch.arange(LANES)[:, None], torch.arange(elements)[None]
        by_column = layout == "col"
        height, width = (cols, rows) if by_column else (rows, cols)
        row = (lane % height).expand(LANES, elements)
        col = run * (lane // height) + element % run + element // run * run * (LANES // height)
        if by_column:
            row, col, height, width = col, row, width, height
        tiles = torch.empty(count, height, width, dtype=values.dtype)
        tiles[:, row, col] = values.reshape(LANES, count, elements).transpose(0, 1)
        return (
            tiles.reshape(count // columns, columns, height, width)
            .transpose(1, 2)
            .reshape(-1, columns * width)
        )


# Rows, columns and number of consecutive elements in a lane.
_BASE_TILES = {
    "16x32": (16, 32, 8),
    "32x16": (32, 16, 8),
    "16x16": (16, 16, 4),
    "32x32": (32, 32, 4),
    "16x4": (16, 4, 1),
}


class Scalar(int):
    """An SGPR's 32 bits, or the 64 of a pair. `.f32`, `.i32`, ... read them as that type."""

    bits: int

    def __new__(cls, value: int, bits: int = 32) -> Scalar:
        scalar = super().__new__(cls, value)
        scalar.bits = bits
        return scalar

    def __getattr__(self, name: str):
        if name not in DTYPES:
            raise AttributeError(f"a scalar register has no type {name!r}; allowed: {', '.join(DTYPES)}")
        numbers = torch.frombuffer(bytearray(int(self).to_bytes(self.bits // 8, "little")), dtype=torch.uint8)
        values = numbers.view(DTYPES[name]).tolist()
        return values[0] if len(values) == 1 else values


class RegisterFile:
    """`v`, `a` or `s` in an expression: v[3], v[0:4]; the end is exclusive, as in Python."""

    def __init__(self, name: str, read: Callable[[int, int], object], count: int) -> None:
        self._name, self._read, self._count = name, read, count

    def __getitem__(self, index: int | slice):
        if isinstance(index, slice):
            first, end = index.start or 0, self._count if index.stop is None else index.stop
            if index.step not in (None, 1):
                raise ValueError(f"{self._name}[...] is of consecutive registers, without a step")
        else:
            first, end = int(index), int(index) + 1
        if not 0 <= first < end <= self._count:
            what = f"{first}" if end == first + 1 else f"{first}:{end}"
            raise ValueError(f"{self._name}[{what}]; the kernel has {self._name}[0:{self._count}]")
        return self._read(first, end - first)


def as_json(value: object) -> object:
    """The value of an expression in JSON's types; a register as its dwords."""
    if isinstance(value, VectorRegisters):
        value = value.u32
    if isinstance(value, torch.Tensor):
        if value.dtype in (torch.uint16, torch.uint32):
            value = value.to(torch.int64)
        return (
            value.float().tolist()
            if value.dtype.itemsize == 1 and value.is_floating_point()
            else value.tolist()
        )
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else value
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return str(value)
