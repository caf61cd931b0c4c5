# SPDX-License-Identifier: MIT
"""What every operation asks of its tensors before it asks anything of its own."""

from __future__ import annotations

from typing import Any

import torch


def check_tensor(where: str, name: str, value: Any) -> None:
    """Raises TypeError for what is no dense tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{where}: {name} is {type(value).__name__}; it must be a torch.Tensor")
    if value.layout != torch.strided:
        raise TypeError(f"{where}: {name} is sparse ({value.layout}); call .to_dense() first")


def number(where: str, name: str, value: Any) -> float:
    """`value` as a float. TypeError for what is no number."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{where}: {name} is {value!r}; it must be a number")


def check_whole_number(where: str, name: str, value: Any) -> None:
    """TypeError for what is no int; True and False are none either."""
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool):
        raise TypeError(f"{where}: {name} is {value!r}; it must be a whole number (int)")


def check_flag(where: str, name: str, value: Any) -> None:
    """TypeError for what is neither True nor False: a word such as "no" would otherwise count as True."""
    if isinstance(value, (str, torch.Tensor)) or value not in (False, True):
        raise TypeError(f"{where}: {name} is {value!r}; allowed: True, False")


def check_probability(where: str, name: str, value: Any) -> None:
    """TypeError for what is no number, ValueError for one outside [0, 1)."""
    if not 0.0 <= number(where, name, value) < 1.0:
        raise ValueError(f"{where}: {name} is {value}; it must be in [0, 1)")


def check_dtype_and_device(
    where: str,
    name: str,
    value: torch.Tensor,
    dtypes: tuple[torch.dtype, ...],
    first_name: str,
    first: torch.Tensor,
) -> None:
    """Raises TypeError for a dtype that is none of `dtypes`, ValueError for another device than the first tensor's."""
    if value.dtype not in dtypes:
        raise TypeError(f"{where}: {name} is {value.dtype}; allowed: {', '.join(map(str, dtypes))}")
    if value.device != first.device:
        raise ValueError(
            f"{where}: {name} is on {value.device} and {first_name} on {first.device}; move one to the other"
        )


def check_gets_no_gradient(where: str, name: str, value: torch.Tensor | None) -> None:
    """Raises ValueError for a tensor whose gradient would be asked for in vain. An argument left out is None."""
    if value is not None and torch.is_grad_enabled() and value.requires_grad:
        raise ValueError(
            f"{where}: {name} requires a gradient and gets none; pass {name}.detach(), or use torch.no_grad()"
        )
