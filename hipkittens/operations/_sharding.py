# SPDX-License-Identifier: MIT
"""Parts of DTensor strategies: how the inputs of an operator may be sharded, and how its results then are.

A strategy gets the operator's arguments, with tensors as specifications with a shape and placements, and returns pairs of placements: of
the results, and of all arguments, with None for those that are not tensors. torch.distributed.tensor is imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def is_tensor(argument: Any) -> bool:
    return hasattr(argument, "placements")


def given(argument: Any, placement: Any) -> Any:
    """The placement of an argument that may be absent."""
    return None if argument is None else placement


def replicated(arguments: Any, results: int) -> tuple[list[Any], list[Any]]:
    """The strategy that is always possible: every rank computes everything."""
    from torch.distributed.tensor import Replicate

    return [Replicate()] * results, [Replicate() if is_tensor(argument) else None for argument in arguments]


def rowwise(tensors: int, results: int = 1) -> Callable[..., list[Any]]:
    """For an operator on rows whose first arguments, `tensors` of them, and results have all dimensions but the last in common: any of
    these may be sharded. Other tensors are replicated.
    """

    def strategies(*arguments: Any) -> list[Any]:
        from torch.distributed.tensor import Replicate, Shard

        found = [replicated(arguments, results)]
        for axis in range(len(arguments[0].shape) - 1):
            rows = [given(argument, Shard(axis)) for argument in arguments[:tensors]]
            others = [Replicate() if is_tensor(argument) else None for argument in arguments[tensors:]]
            found.append(([Shard(axis)] * results, [*rows, *others]))
        return found

    return strategies
