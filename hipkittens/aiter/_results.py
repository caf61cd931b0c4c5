# SPDX-License-Identifier: MIT
"""Results written to the tensors that callers of AITER pass for them."""

from __future__ import annotations

from typing import NoReturn

import torch


def put(function: str, name: str, into: torch.Tensor, result: torch.Tensor) -> None:
    """Writes result to `into`, which has its shape, converted to its dtype."""
    where = f"hipkittens.aiter.{function}"
    if not isinstance(into, torch.Tensor):
        raise TypeError(f"{where}: {name} is {type(into).__name__}; it must be a torch.Tensor")
    if into.shape != result.shape:
        raise ValueError(
            f"{where}: {name} has shape {tuple(into.shape)}; the result's is {tuple(result.shape)}; pass one of that shape"
        )
    with torch.no_grad():
        into.copy_(result)


def check_place(function: str, name: str, into: torch.Tensor | None, *shape: int) -> None:
    """TypeError or ValueError, before anything is launched, for a tensor that cannot hold a result of this shape. None is accepted."""
    where = f"hipkittens.aiter.{function}"
    if into is None:
        return
    if not isinstance(into, torch.Tensor):
        raise TypeError(f"{where}: {name} is {type(into).__name__}; it must be a torch.Tensor")
    if tuple(into.shape) != shape:
        raise ValueError(
            f"{where}: {name} has shape {tuple(into.shape)}; the result's is {shape}; pass one of that shape"
        )


def placed(function: str, name: str, into: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    """The result, or `into` filled with it, converted."""
    if into is None:
        return result
    put(function, name, into, result)
    return into


def put_codes(function: str, name: str, into: torch.Tensor, codes: torch.Tensor) -> None:
    """Writes 8-bit values, unchanged."""
    if into.dtype.itemsize != 1:
        raise TypeError(
            f"hipkittens.aiter.{function}: {name} is {into.dtype}; codes of {codes.dtype} have 8 bits"
        )
    put(function, name, into.view(torch.uint8), codes.view(torch.uint8))


def refuse(function: str, argument: str, value: object, instead: str) -> NoReturn:
    raise NotImplementedError(
        f"hipkittens.aiter.{function}: {argument} is {value}, which has no kernel; {instead}"
    )


def check_model_sensitive(function: str, value: object) -> None:
    """AITER's kernel numbers: 1 rounds before the weight."""
    if value not in (0, 1):
        raise ValueError(
            f"hipkittens.aiter.{function}: use_model_sensitive_rmsnorm is {value!r}; allowed: 0, 1"
        )
