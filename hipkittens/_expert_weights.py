# SPDX-License-Identifier: MIT
"""The weights of a list of experts as one tensor, without a copy if they are adjacent in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_PLAIN = {torch.Tensor, torch.nn.Parameter}


def stacked(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """torch.stack(weights): a view if `join` has made them adjacent in memory, and they still are."""
    if (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or not are_side_by_side(weights)
    ):
        return torch.stack(list(weights))
    return _View.apply(*weights)


def join(weights: Sequence[torch.nn.Parameter]) -> bool:
    """Moves parameters of one shape into one contiguous memory: the same objects with the same values. Does nothing and returns False if
    they are not plain tensors of one dtype and device, or have no memory.
    """
    first = weights[0]
    if not _PLAIN.issuperset(map(type, weights)) or first.device.type == "meta":
        return False
    if any(
        (each.shape, each.dtype, each.device) != (first.shape, first.dtype, first.device) for each in weights
    ):
        return False
    if not are_side_by_side(weights):
        whole = torch.empty((len(weights), *first.shape), dtype=first.dtype, device=first.device)
        with torch.no_grad():
            for place, weight in zip(whole, weights, strict=True):
                place.copy_(weight)
                weight.data = place
    return True


def are_side_by_side(weights: Sequence[torch.Tensor]) -> bool:
    """Whether each begins where the previous one ends, in the memory of the first."""
    first = weights[0]
    if not _PLAIN.issuperset(map(type, weights)) or first.device.type == "meta" or not first.numel():
        return False
    step = first.numel() * first.element_size()
    begin, memory = first.data_ptr(), first.untyped_storage()
    if begin + len(weights) * step > memory.data_ptr() + memory.nbytes():
        return False
    return all(
        each.data_ptr() == begin + number * step
        and each.shape == first.shape
        and each.dtype == first.dtype
        and each.is_contiguous()
        for number, each in enumerate(weights)
    )


class _View(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *weights: torch.Tensor) -> torch.Tensor:
        first = weights[0].detach()
        return first.as_strided((len(weights), *first.shape), (first.numel(), *first.stride()))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return grad.unbind(0)
