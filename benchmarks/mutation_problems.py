# SPDX-License-Identifier: MIT
"""The kernels of the packs by the names used in reports, each with the small problem on which it is mutated."""

from __future__ import annotations

from hipkittens import _representative
from hipkittens.operations._record import Kernel


def short_name(kernel: Kernel) -> str:
    """The kernel's name without the prefix hipkittens_ and the target suffix."""
    return kernel.symbol.removeprefix("hipkittens_").removesuffix("_" + kernel.target)


def kernels(target: str) -> dict[str, Kernel]:
    """The kernels by short name."""
    return {short_name(kernel): kernel for kernel in _representative.kernels(target)}


def argument(kernel: Kernel, name: str) -> tuple[int, int]:
    """Offset and size of an argument. Raises LookupError if the kernel has no argument of this name."""
    for each in kernel.arguments:
        if each["name"] == name:
            return each["offset"], each["size"]
    raise LookupError(f"{kernel.symbol} has no argument {name!r}")
