# SPDX-License-Identifier: MIT
"""torch.func.vmap over our operators: one call for each element of the mapped dimension, in order.

Correct for every operator, and as fast as a loop; what PyTorch does without a rule is the same loop with a warning that requests one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _namespace


def register(name: str) -> None:
    """Gives torch.ops.hipkittens.<name> its rule, which raises RuntimeError if it would write to something that is not mapped."""
    operator = getattr(_namespace.OPERATORS, name).default
    formal = operator._schema.arguments

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        for argument, dimension in zip(formal, in_dims, strict=False):  # defaults may be omitted
            if argument.alias_info is not None and dimension is None:
                raise RuntimeError(
                    f"hipkittens: {name} under torch.func.vmap writes to {argument.name}, which is not mapped, from arguments "
                    "that are; map it, too, or compute out of place"
                )

        return in_a_loop(operator, info.batch_size, in_dims, arguments)

    torch.library.register_vmap(f"{_namespace.NAMESPACE}::{name}", rule)


def in_a_loop(
    function: Callable[..., Any], size: int, in_dims: tuple[int | None, ...], arguments: Sequence[Any]
) -> tuple[Any, Any]:
    """Results and their dimensions, as a rule of torch.library.register_vmap or torch.autograd.Function returns them."""

    def element(index: int) -> Any:
        return function(
            *(
                value if dimension is None else value.select(dimension, index)
                for value, dimension in zip(arguments, in_dims, strict=True)
            )
        )

    results = [element(index) for index in range(size)]
    if results[0] is None:
        return None, None
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results), 0
    return tuple(torch.stack(each) for each in zip(*results, strict=True)), (0,) * len(results[0])
