# SPDX-License-Identifier: MIT
"""The problems that `bench`, `profile` and `trace` know by name, and the syntax of their shapes."""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from .. import operations
from ..operations._record import Benchmark

SYNTAX = operations.benchmarks()
OPERATIONS = tuple(SYNTAX)
_MOST = 1 << 24  # of one extent: far larger than any of these problems


class ShapeError(ValueError):
    """An invalid shape, or one that is not of this operation."""


@dataclass(frozen=True)
class Problem:
    """One operation at one shape, all tensors bfloat16.

    operation  one of OPERATIONS
    extents    by letter (B batch, H heads, K key heads, N tokens or queries, L keys, D head size; M, N, K of a product of
               M x K and K x N) or by name (rows, columns)
    causal     the mask that is aligned with the last query and the last key
    training   a gradient will be computed, so what it needs, such as mean and 1 / deviation of each row, is written as well
    """

    operation: str
    extents: Mapping[str, int]
    causal: bool = False
    training: bool = False

    def __getitem__(self, extent: str) -> int:
        return self.extents[extent]

    @cached_property
    def shape(self) -> str:
        """In the syntax of --shapes, without extents that have their default."""
        syntax = SYNTAX[self.operation]
        if syntax.extents:
            return "x".join(str(self[name]) for name in syntax.extents) + ":training" * self.training
        # Heads before lengths, then the operation's other extents in its own order.
        others = (*syntax.letters, *syntax.optional)
        order = [name for name in dict.fromkeys((*"BHKNLD", *others)) if name in self.extents]
        parts = [
            f"{name}{self[name]}"
            for name in order
            if name not in syntax.optional or self[name] != _default(syntax, name, self.extents)
        ]
        return "".join(parts) + ":causal" * self.causal

    @cached_property
    def size(self) -> int:
        """The value on a plot's axis: N of a product or a sequence, columns of a norm, tokens of a router, classes of a loss."""
        return next(self[name] for name in ("columns", "N", "tokens", "classes") if name in self.extents)

    @cached_property
    def flops(self) -> float | None:
        """Useful floating-point operations, as publications count them; None if memory is the measure."""
        count = SYNTAX[self.operation].flops
        return None if count is None else count(self)

    @property
    def bits(self) -> int:
        """The width of the elements that are multiplied."""
        return SYNTAX[self.operation].bits

    @cached_property
    def bytes(self) -> float:
        """Bytes that must be moved between memory and the chip: every operand and result once."""
        return SYNTAX[self.operation].bytes(self)

    @cached_property
    def chained(self) -> bool:
        """Whether its launches compute addresses from what earlier ones wrote, so that the model has to compute results as well."""
        return SYNTAX[self.operation].chained

    def call(self, device: str = "cpu") -> Callable[[], object]:
        """A function that runs ours on tensors of `device`: random values on a GPU, zeros elsewhere, which the model does not look at.
        ShapeError if this machine does not have enough memory for them.
        """
        if device == "cpu" and self.bytes > (free := _free_memory()):
            raise ShapeError(
                f"shape {self.shape!r} has tensors of {self.bytes / 1e9:,.0f} GB, and {free / 1e9:,.0f} GB of memory are free; "
                "take a smaller one"
            )
        return SYNTAX[self.operation].call(self, device)

    def tensor(self, device: str, *shape: int) -> torch.Tensor:
        if device == "cpu":
            return _untouched_zeros(shape)
        return torch.randn(shape, dtype=torch.bfloat16, device=device)

    def in_codes(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor quantized to 8 bits; one on the CPU is not read, since it is zeros."""
        return _untouched_zeros(values.shape, dtype) if values.device.type == "cpu" else values.to(dtype)


def _untouched_zeros(shape: Sequence[int], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Zeros whose pages use memory only once they are written: torch.zeros writes them all."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.zeros(shape, dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8, count=size).view(dtype).view(shape)


def _free_memory() -> float:
    """Bytes that can be allocated without swapping; infinity if Linux does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    return next(
        (1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), math.inf
    )


def _default(syntax: Benchmark, letter: str, extents: Mapping[str, int]) -> int:
    """The default of an optional extent."""
    other = syntax.optional[letter]
    return extents[other] if isinstance(other, str) else other


def parse_shapes(operation: str, text: str) -> list[Problem]:
    """The problems of a comma-separated list. ShapeError names the invalid shape, and gives an example for this operation."""
    return [_parse(operation, part.strip()) for part in text.split(",")]


def _parse(operation: str, text: str) -> Problem:
    syntax = SYNTAX[operation]
    extents, option = _crossed(syntax, text) if syntax.extents else _lettered(operation, syntax, text)
    for name, value in extents.items():
        least = 0 if syntax.optional.get(name) == 0 else 1
        if not least <= value <= _MOST:
            raise ShapeError(f"shape {text!r}: {name} is {value}; allowed: {least} to {_MOST}")
    if syntax.refuse is not None and (wrong := syntax.refuse(extents)):
        raise ShapeError(f"shape {text!r}: {wrong}")
    return Problem(operation, extents, causal=option and syntax.causal, training=option and syntax.training)


def _crossed(syntax: Benchmark, text: str) -> tuple[dict[str, int], bool]:
    body, colon, option = text.partition(":")
    if colon and not (syntax.training and option == "training"):
        allowed = "training, or nothing" if syntax.training else "nothing"
        raise ShapeError(f"shape {text!r}: after the colon is {option!r}; allowed: {allowed}")
    parts = body.split("x")
    if len(parts) != len(syntax.extents) or not all(part.isascii() and part.isdigit() for part in parts):
        raise ShapeError(f"shape {text!r} is not {'x'.join(syntax.extents)}, such as {syntax.example}")
    return dict(zip(syntax.extents, map(int, parts), strict=True)), bool(colon)


def _lettered(operation: str, syntax: Benchmark, text: str) -> tuple[dict[str, int], bool]:
    body, colon, mask = text.partition(":")
    optional = syntax.optional
    such_as = f"; {operation} takes {syntax.letters}{''.join(f'[{name}]' for name in optional)}, such as {syntax.example}"
    if colon and not (syntax.causal and mask == "causal"):
        allowed = "causal, or nothing" if syntax.causal else "nothing"
        raise ShapeError(f"shape {text!r}: after the colon is {mask!r}; allowed: {allowed}")
    if not re.fullmatch(r"([A-Z]\d+)+", body, re.ASCII):
        raise ShapeError(f"shape {text!r} is not letters with numbers{such_as}")
    extents: dict[str, int] = {}
    for letter, digits in re.findall(r"([A-Z])(\d+)", body):
        if letter in extents:
            raise ShapeError(f"shape {text!r} has {letter} twice")
        if letter not in syntax.letters and letter not in optional:
            raise ShapeError(f"shape {text!r}: {letter} is no extent{such_as}")
        extents[letter] = int(digits)
    missing = [letter for letter in syntax.letters if letter not in extents]
    if missing:
        raise ShapeError(f"shape {text!r} has no {missing[0]}{such_as}")
    for letter in optional:
        extents.setdefault(letter, _default(syntax, letter, extents))
    return extents, bool(colon)
