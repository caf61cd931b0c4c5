# SPDX-License-Identifier: MIT
"""The rotation shared by all rotary functions: tables, positions and options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ._arguments import check_dtype_and_device, check_flag, check_gets_no_gradient, check_tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass
class Rotation:
    """The arguments of `hipkittens.rotary` that determine the rotation of each token."""

    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool = False
    positions: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None
    offset: Any = 0
    nope_first: bool = False
    full_tables: bool = False
    column_tables: tuple[torch.Tensor, torch.Tensor] | None = None

    def check_types(self, where: str, name: str, first: torch.Tensor) -> None:
        """Checks tables and flags, independent of sizes."""
        for table_name, table in (("cos", self.cos), ("sin", self.sin)):
            check_tensor(where, table_name, table)
            check_dtype_and_device(where, table_name, table, DTYPES, name, first)
        for flag in ("interleaved", "nope_first", "full_tables"):
            check_flag(where, flag, getattr(self, flag))
        if isinstance(self.offset, bool) or not isinstance(self.offset, (int, torch.SymInt)):
            raise TypeError(
                f"{where}: offset is {self.offset!r}; it must be an int (positions takes a tensor)"
            )

    def check(
        self, where: str, name: str, first: torch.Tensor, batch: int, tokens: int, features: int
    ) -> None:
        """Raises unless a kernel can rotate `features` of `tokens` tokens by it."""
        cos, sin = self.cos, self.sin
        if cos.dim() != 2 or cos.shape != sin.shape or cos.dtype != sin.dtype:
            columns = "(rows, 2 * pairs)" if self.full_tables else "(rows, pairs)"
            raise ValueError(
                f"{where}: cos is {tuple(cos.shape)} {cos.dtype} and sin {tuple(sin.shape)} {sin.dtype}; both must be "
                f"{columns} of one dtype"
            )
        axes = 1 if self.column_tables is None else 2
        most = features // (2 * axes) * (2 if self.full_tables else 1)
        if not 1 <= cos.shape[1] <= most:
            raise ValueError(
                f"{where}: cos has {cos.shape[1]} columns and {name} {features} features; 1 to {most} are allowed"
            )
        if self.full_tables and cos.shape[1] % 2:
            raise ValueError(
                f"{where}: cos has {cos.shape[1]} columns; full_tables have two for each pair, an even number"
            )
        for table_name, table in (("cos", cos), ("sin", sin)):
            check_gets_no_gradient(where, table_name, table)
        if self.column_tables is not None:
            self._check_grid(where, name, first, tokens)
            return
        if self.cu_seqlens is not None:
            self._check_packed(where, name, first, batch)
        elif not self._looks_up() and (self.offset < 0 or self.offset + tokens > cos.shape[0]):
            raise ValueError(
                f"{where}: offset {self.offset} and {tokens} tokens need {self.offset + tokens} rows; cos and sin have "
                f"{cos.shape[0]}"
            )
        for numbers_name in ("positions", "offsets"):
            numbers = getattr(self, numbers_name)
            if numbers is not None:
                self._check_numbers(where, numbers_name, numbers, name, first, batch, tokens)

    def _looks_up(self) -> bool:
        """Whether rows are given by tensors, whose values are not read here."""
        return self.positions is not None or self.offsets is not None

    def _check_numbers(self, where, numbers_name, numbers, name, first, batch, tokens) -> None:
        if not isinstance(numbers, torch.Tensor) or numbers.dtype not in (torch.int32, torch.int64):
            kind = numbers.dtype if isinstance(numbers, torch.Tensor) else type(numbers).__name__
            raise TypeError(
                f"{where}: {numbers_name} is {kind}; allowed: a tensor of torch.int32 or torch.int64"
            )
        if numbers_name == "positions" and self.offset != 0:
            raise ValueError(
                f"{where}: positions and offset {self.offset} are both given; add it to positions"
            )
        if tuple(numbers.shape) not in ((tokens,), (batch, tokens), (1, tokens)):
            raise ValueError(
                f"{where}: {numbers_name} has shape {tuple(numbers.shape)}; it must be ({tokens},) or ({batch}, {tokens})"
            )
        if numbers.device != first.device:
            raise ValueError(
                f"{where}: {numbers_name} is on {numbers.device} and {name} on {first.device}; move one to the other"
            )

    def _check_packed(self, where, name, first, batch) -> None:
        ends = self.cu_seqlens
        if not isinstance(ends, torch.Tensor) or ends.dtype not in (torch.int32, torch.int64):
            kind = ends.dtype if isinstance(ends, torch.Tensor) else type(ends).__name__
            raise TypeError(f"{where}: cu_seqlens is {kind}; allowed: a tensor of torch.int32 or torch.int64")
        if self.positions is not None:
            raise ValueError(
                f"{where}: positions and cu_seqlens are both given; each says where every token stands"
            )
        if ends.dim() != 1 or ends.shape[0] < 2:
            raise ValueError(
                f"{where}: cu_seqlens has shape {tuple(ends.shape)}; it must be (sequences + 1,) with at least 1 sequence"
            )
        if ends.device != first.device:
            raise ValueError(
                f"{where}: cu_seqlens is on {ends.device} and {name} on {first.device}; move one to the other"
            )
        if batch != 1:
            raise ValueError(
                f"{where}: {name} has batch {batch}; cu_seqlens needs all sequences packed in one, (tokens, heads, features)"
            )
        if self.offset < 0:
            raise ValueError(f"{where}: offset is {self.offset}; it must not be negative")

    def _check_grid(self, where, name, first, tokens) -> None:
        tables = self.column_tables
        if not isinstance(tables, (tuple, list)) or len(tables) != 2:
            raise TypeError(
                f"{where}: column_tables is {type(tables).__name__}; it must be a pair, (cos, sin)"
            )
        for table_name, table in zip(("cos", "sin"), tables, strict=True):
            table_name = f"column_tables' {table_name}"
            check_tensor(where, table_name, table)
            check_dtype_and_device(where, table_name, table, (self.cos.dtype,), name, first)
            if (
                table.dim() != 2
                or table.shape[1] != self.cos.shape[1]
                or table.shape[0] != tables[0].shape[0]
            ):
                raise ValueError(
                    f"{where}: {table_name} has shape {tuple(table.shape)}; it must be (columns of tokens, {self.cos.shape[1]}), "
                    "that of cos and of sin the same"
                )
            check_gets_no_gradient(where, table_name, table)
        for other in ("positions", "offsets", "cu_seqlens"):
            if getattr(self, other) is not None:
                raise ValueError(
                    f"{where}: {other} and column_tables are both given; tokens of a grid stand row by row"
                )
        rows, columns = self.cos.shape[0], tables[0].shape[0]
        if self.offset != 0:
            raise ValueError(
                f"{where}: offset is {self.offset}; tokens of a grid begin with its first row, pass a part of cos and sin"
            )
        if tokens > rows * columns:
            raise ValueError(f"{where}: {name} has {tokens} tokens in a grid of {rows} rows of {columns}")

    def operands(self, batch: int, tokens: int, inverse: bool = False) -> tuple[Any, ...]:
        """In the form that the operators accept."""
        positions, offset = self.positions, self.offset
        if self.cu_seqlens is not None:
            positions, offset = _packed_positions(self.cu_seqlens, tokens, offset), 0
        positions, offsets = (
            None if numbers is None else numbers.expand(batch, tokens)
            for numbers in (positions, self.offsets)
        )
        columns = (None, None) if self.column_tables is None else tuple(self.column_tables)
        flags = (self.interleaved, self.nope_first, self.full_tables, inverse)
        return (self.cos, self.sin, positions, offsets, *columns, offset, *flags)


def _packed_positions(cu_seqlens: torch.Tensor, tokens: int, offset: Any) -> torch.Tensor:
    """The position of each token in its own sequence, plus offset; computed on cu_seqlens's device, without synchronization."""
    token = torch.arange(tokens, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens, token, right=True) - 1
    return token - cu_seqlens[sequence] + offset


def turned_in_torch(
    x,
    cos,
    sin,
    positions,
    offsets,
    column_cos,
    column_sin,
    offset,
    interleaved,
    nope_first,
    full_tables,
    inverse,
):
    """The operator on (batch, tokens, heads, features), by PyTorch operations: in float32, or x's dtype if that is wider."""
    token = torch.arange(x.shape[1], device=x.device)
    if column_cos is not None:
        width = column_cos.shape[0]
        found = [
            (cos[token // width], sin[token // width]),
            (column_cos[token % width], column_sin[token % width]),
        ]
    else:
        rows = (token if positions is None else positions.long()) + offset
        rows = rows if offsets is None else rows + offsets.long()
        found = [(cos[rows], sin[rows])]
    wide = torch.promote_types(x.dtype, torch.float32)
    tables = [[table.to(wide).unsqueeze(-2) for table in pair] for pair in found]
    size = cos.shape[1] * (1 if full_tables else 2)
    rotated = size * len(tables)
    begin = x.shape[-1] - rotated if nope_first else 0
    results = [x[..., :begin]]
    for axis, of_axis in enumerate(tables):
        part = x[..., begin + axis * size : begin + (axis + 1) * size].to(wide)
        (cos_a, cos_b), (sin_a, sin_b) = (
            _pairs(table, interleaved) if full_tables else (table, table) for table in of_axis
        )
        if inverse:
            sin_a, sin_b = -sin_b, -sin_a
        a, b = _pairs(part, interleaved)
        turned = (a * cos_a - b * sin_a, a * sin_b + b * cos_b)
        joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
        results.append(joined.to(x.dtype))
    return torch.cat((*results, x[..., begin + rotated :]), -1)


def _pairs(value, interleaved):
    return (value[..., 0::2], value[..., 1::2]) if interleaved else value.chunk(2, -1)
