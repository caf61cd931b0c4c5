# SPDX-License-Identifier: MIT
"""The problems that `bench`, `profile` and `trace` know by name, and the syntax of their shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

OPERATIONS = (
    "gemm", "attention", "attention_backward", "rotary", "layer_norm", "layer_norm_backward", "rms_norm",
)  # fmt: skip
BYTES = 2  # of a bfloat16, the dtype of every problem
_MOST = 1 << 24  # of one extent: far beyond any of these problems


class ShapeError(ValueError):
    """A shape that is none, or not one of this operation."""


@dataclass(frozen=True)
class _Syntax:
    example: str
    letters: str = ""  # of the extents that have to be there
    optional: Mapping[str, str] | None = None  # extent: the one that it is equal to when it is not there
    extents: tuple[str, ...] = ()  # of a shape with crosses
    causal: bool = False
    training: bool = False  # may be asked for with what its gradient needs


_ATTENTION = _Syntax("B16H64K8N2048D128:causal", "BHND", {"K": "H", "L": "N"}, causal=True)
_ROWS = _Syntax("32768x8192:training", extents=("rows", "columns"), training=True)
SYNTAX = {
    "gemm": _Syntax("4096x4096x4096", extents=("M", "N", "K")),
    "attention": _ATTENTION,
    "attention_backward": _ATTENTION,
    "rotary": _Syntax("B16H16N2048D128", "BHND"),
    "layer_norm": _ROWS,
    "layer_norm_backward": _Syntax("32768x8192", extents=("rows", "columns")),
    "rms_norm": _ROWS,
}
DEFAULT_SHAPES = {
    "gemm": "1024x1024x1024,2048x2048x2048,4096x4096x4096",
    "attention": "B16H16N1024D128,B16H16N2048D128",
    "attention_backward": "B16H16N1024D128",
    "rotary": "B16H16N1024D128,B16H16N2048D128,B16H16N4096D128",
    "layer_norm": "16384x2048,16384x4096,16384x8192",
    "layer_norm_backward": "16384x2048,16384x4096,16384x8192",
    "rms_norm": "16384x2048,16384x4096,16384x8192",
}


@dataclass(frozen=True)
class Problem:
    """One operation at one shape, all tensors bfloat16.

    operation  one of OPERATIONS
    extents    by letter (attention: B batch, H query heads, K key heads, N queries, L keys, D head size; rotary: B, H, N, D)
               or by name (gemm: M, N, K of M x K times K x N; norms: rows, columns)
    causal     attention: the mask that is aligned with the last query and the last key
    training   norms: a gradient will be taken, so mean and 1 / deviation of each row are written as well
    """

    operation: str
    extents: Mapping[str, int]
    causal: bool = False
    training: bool = False

    def __getitem__(self, extent: str) -> int:
        return self.extents[extent]

    @cached_property
    def shape(self) -> str:
        """In the syntax of --shapes, extents that have their default left out."""
        syntax = SYNTAX[self.operation]
        if syntax.extents:
            return "x".join(str(self[name]) for name in syntax.extents) + ":training" * self.training
        defaults = syntax.optional or {}
        order = [name for name in "BHKNLD" if name in self.extents]
        parts = [
            f"{name}{self[name]}"
            for name in order
            if name not in defaults or self[name] != self[defaults[name]]
        ]
        return "".join(parts) + ":causal" * self.causal

    @cached_property
    def size(self) -> int:
        """What a plot has along its axis: N of a product or a sequence, columns of a norm."""
        return self["columns" if "columns" in self.extents else "N"]

    @cached_property
    def flops(self) -> float | None:
        """Useful floating-point operations, as publications count them; None where memory is the measure.

        Attention has 4 B H N L D, half of that under a causal mask, and 2.5 times as many backward.
        """
        if self.operation == "gemm":
            return 2.0 * self["M"] * self["N"] * self["K"]
        if not self.operation.startswith("attention"):
            return None
        forward = (
            4.0 * self["B"] * self["H"] * self["N"] * self["L"] * self["D"] * (0.5 if self.causal else 1)
        )
        return forward * (2.5 if self.operation == "attention_backward" else 1)

    @cached_property
    def bytes(self) -> float:
        """Bytes that have to move between memory and the chip: every operand and result once."""
        e = self.extents
        if self.operation == "gemm":
            return BYTES * float(e["M"] * e["K"] + e["K"] * e["N"] + e["M"] * e["N"])
        if self.operation.startswith("attention"):
            queries, keys = e["B"] * e["N"] * e["H"] * e["D"], e["B"] * e["L"] * e["K"] * e["D"]
            lse = 4 * e["B"] * e["H"] * e["N"]
            if self.operation == "attention":  # q, out; k, v; lse
                return BYTES * (2.0 * queries + 2 * keys) + lse
            return BYTES * (4.0 * queries + 4 * keys) + lse  # q, out, dout, dq; k, v, dk, dv; lse
        if self.operation == "rotary":
            return BYTES * 2.0 * e["B"] * e["N"] * e["H"] * e["D"]
        passes = 3 if self.operation == "layer_norm_backward" else 2  # x, y; or x, dy, dx
        return BYTES * float(passes * e["rows"] * e["columns"])

    def call(self, device: str = "cpu") -> Callable[[], object]:
        """A function that runs ours on tensors of `device`: of random values on a GPU, of zeros elsewhere, which the model
        does not look at. ShapeError if this machine has no room for them."""
        if device == "cpu" and self.bytes > (free := _free_memory()):
            raise ShapeError(
                f"shape {self.shape!r} has tensors of {self.bytes / 1e9:,.0f} GB, and {free / 1e9:,.0f} GB of memory are free; "
                "take a smaller one"
            )
        from .. import attention, layer_norm, matmul, rms_norm, rotary

        e = self.extents
        if self.operation == "gemm":
            a, b = self.tensor(device, e["M"], e["K"]), self.tensor(device, e["N"], e["K"])
            return lambda: matmul(a, b.mT)
        if self.operation.startswith("attention"):
            q = self.tensor(device, e["B"], e["N"], e["H"], e["D"])
            k, v = (self.tensor(device, e["B"], e["L"], e["K"], e["D"]) for _ in range(2))
            if self.operation == "attention":
                return lambda: attention(q, k, v, causal=self.causal)
            gradient, out = (self.tensor(device, *q.shape) for _ in range(2))
            lse = torch.zeros(e["B"], e["H"], e["N"], device=device)
            if device != "cpu":
                out, lse = torch.ops.hipkittens.attention_forward(q, k, v, *self._options())
            return lambda: torch.ops.hipkittens.attention_backward(
                gradient, None, q, k, v, out, lse, *self._options()
            )
        if self.operation == "rotary":
            x = self.tensor(device, e["B"], e["N"], e["H"], e["D"])
            angles = torch.outer(torch.arange(e["N"]), 10000.0 ** -torch.linspace(0, 1, e["D"] // 2))
            cos, sin = angles.cos().to(device), angles.sin().to(device)
            return lambda: rotary(x, cos, sin)
        x, weight = self.tensor(device, e["rows"], e["columns"]), self.tensor(device, e["columns"])
        weight.requires_grad_(self.training)
        if self.operation == "rms_norm":
            return lambda: rms_norm(x, weight)
        bias = self.tensor(device, e["columns"])
        if self.operation == "layer_norm":
            return lambda: layer_norm(x, weight, bias)
        gradient, statistics = self.tensor(device, *x.shape), torch.zeros(e["rows"], device=device)
        return lambda: torch.ops.hipkittens.norm_backward(
            gradient, None, x, weight, statistics, statistics, 0.0, None, True, True
        )

    def _options(self) -> tuple[float, bool, int, int, float, None]:
        """scale, causal, window_left, window_right, dropout_p, seed."""
        return self["D"] ** -0.5, self.causal, -1, -1, 0.0, None

    def tensor(self, device: str, *shape: int) -> torch.Tensor:
        make = torch.zeros if device == "cpu" else torch.randn
        return make(shape, dtype=torch.bfloat16, device=device)


def _free_memory() -> float:
    """Bytes that can be allocated without swapping; infinitely many where Linux does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    return next(
        (1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), math.inf
    )


def parse_shapes(operation: str, text: str) -> list[Problem]:
    """The problems of a list with commas. ShapeError names the shape that is wrong, and what one of this operation looks like."""
    return [_parse(operation, part.strip()) for part in text.split(",")]


def _parse(operation: str, text: str) -> Problem:
    syntax = SYNTAX[operation]
    extents, option = _crossed(syntax, text) if syntax.extents else _lettered(operation, syntax, text)
    for name, value in extents.items():
        if not 1 <= value <= _MOST:
            raise ShapeError(f"shape {text!r}: {name} is {value}; allowed: 1 to {_MOST}")
    if "K" in extents and "H" in extents and extents["H"] % extents["K"]:
        raise ShapeError(
            f"shape {text!r}: {extents['H']} query heads cannot share {extents['K']} key heads; "
            "H has to be a multiple of K"
        )
    if operation == "rotary" and extents["D"] % 2:
        raise ShapeError(f"shape {text!r}: D is {extents['D']}; rotary turns pairs, so it has to be even")
    return Problem(operation, extents, causal=option and syntax.causal, training=option and syntax.training)


def _crossed(syntax: _Syntax, text: str) -> tuple[dict[str, int], bool]:
    body, colon, option = text.partition(":")
    if colon and not (syntax.training and option == "training"):
        allowed = "training, or nothing" if syntax.training else "nothing"
        raise ShapeError(f"shape {text!r}: after the colon is {option!r}; allowed: {allowed}")
    parts = body.split("x")
    if len(parts) != len(syntax.extents) or not all(part.isascii() and part.isdigit() for part in parts):
        raise ShapeError(f"shape {text!r} is not {'x'.join(syntax.extents)}, such as {syntax.example}")
    return dict(zip(syntax.extents, map(int, parts), strict=True)), bool(colon)


def _lettered(operation: str, syntax: _Syntax, text: str) -> tuple[dict[str, int], bool]:
    body, colon, mask = text.partition(":")
    optional = dict(syntax.optional or {})
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
    for letter, other in optional.items():
        extents.setdefault(letter, extents[other])
    return extents, bool(colon)
