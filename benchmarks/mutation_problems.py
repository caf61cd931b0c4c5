# SPDX-License-Identifier: MIT
"""The kernels of the packs by the names that reports have, each with the small problem that it is mutated on."""

from __future__ import annotations

from hipkittens import _representative
from hipkittens.operations._record import Kernel


def short_name(kernel: Kernel) -> str:
    """Without hipkittens_ in front of it and the target behind it."""
    return kernel.symbol.removeprefix("hipkittens_").removesuffix("_" + kernel.target)


def kernels(target: str) -> dict[str, Kernel]:
    """By short name."""
    return {short_name(kernel): kernel for kernel in _representative.kernels(target)}


def argument(kernel: Kernel, name: str) -> tuple[int, int]:
    """Offset and size of an argument. LookupError if the kernel has none of this name."""
    for each in kernel.arguments:
        if each["name"] == name:
            return each["offset"], each["size"]
    raise LookupError(f"{kernel.symbol} has no argument {name!r}")
