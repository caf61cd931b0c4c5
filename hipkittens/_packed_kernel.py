# SPDX-License-Identifier: MIT
"""Launches a kernel of the packs directly, bypassing the operators and their plans: for probes and measurements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from . import _installation
from ._kernel_parameters import Parameter
from .kernel import Kernel

_BY_BYTES = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}


class PackedKernel:
    """The kernel `name` (a symbol, or "operation.row") for `target`, whose argument struct is passed field by field.

    pointers    fields for which tensors are passed, or None
    constant    those of them that the kernel only reads
    parameters  name, type, offset and size of each field

    Raises KeyError for an unknown kernel.
    """

    def __init__(
        self, target: str, name: str, pointers: Collection[str], constant: Collection[str] = ()
    ) -> None:
        pack = _installation.pack(target)
        entry = pack.entry(name)
        (described,) = entry["kernels"]
        fields = entry["arguments"]
        self.parameters = [
            Parameter(
                field["name"],
                ("const void *" if field["name"] in constant else "void *")
                if field["name"] in pointers
                else _BY_BYTES[field["size"]],
                field["offset"],
                field["size"],
            )
            for field in fields
        ]
        end = fields[-1]["offset"] + fields[-1]["size"]
        passed = max(
            argument["offset"] + argument["size"]
            for argument in described["arguments"]
            if not argument["value_kind"].startswith("hidden_")
        )
        # The size of a struct is a multiple of its members' alignment.
        self._padding = passed - end
        padding = [Parameter("padding", "char[]", end, self._padding)] if self._padding else []
        self._kernel = Kernel(described["symbol"], {target: pack.image(entry)}, [*self.parameters, *padding])

    def __call__(self, values: Mapping[str, Any], *, grid: Any, block: Any) -> None:
        """Launches it like hipkittens.kernel.Kernel; fields without a value are 0. ValueError for an unknown name."""
        names = [parameter.name for parameter in self.parameters]
        if wrong := sorted(values.keys() - set(names)):
            raise ValueError(f"{self._kernel.name} has no argument {wrong[0]}; allowed: {', '.join(names)}")
        given = [
            values.get(parameter.name, None if parameter.is_pointer else 0) for parameter in self.parameters
        ]
        padding = [bytes(self._padding)] if self._padding else []
        self._kernel(*given, *padding, grid=grid, block=block)
