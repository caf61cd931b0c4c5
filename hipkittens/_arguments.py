# SPDX-License-Identifier: MIT
"""Checks of tensors and options that all operations share."""

from __future__ import annotations

from typing import Any

import torch


def check_tensor(where: str, name: str, value: Any) -> None:
    """Raises TypeError unless the value is a dense tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{where}: {name} is {type(value).__name__}; it must be a torch.Tensor")
    if value.layout != torch.strided:
        raise TypeError(f"{where}: {name} is sparse ({value.layout}); call .to_dense() first")


def number(where: str, name: str, value: Any) -> float:
    """`value` as a float. TypeError if it is not a number."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{where}: {name} is {value!r}; it must be a number")


def check_whole_number(where: str, name: str, value: Any) -> None:
    """TypeError unless the value is an int; True and False are not accepted either."""
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool):
        raise TypeError(f"{where}: {name} is {value!r}; it must be a whole number (int)")


def check_choices(where: str, choices: Any) -> None:
    """ValueError unless choices, the number of entries for each row, is an int of 1 or more; True is not accepted either."""
    if isinstance(choices, bool) or not isinstance(choices, int) or choices < 1:
        raise ValueError(f"{where}: choices is {choices!r}; it must be a whole number, 1 or more")


def check_flag(where: str, name: str, value: Any) -> None:
    """TypeError unless the value is True or False: a string such as "no" would otherwise count as True."""
    if isinstance(value, (str, torch.Tensor)) or value not in (False, True):
        raise TypeError(f"{where}: {name} is {value!r}; allowed: True, False")


def check_probability(where: str, name: str, value: Any) -> None:
    """TypeError unless the value is a number, ValueError if it is outside [0, 1)."""
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
    """Raises TypeError for a dtype that is not in `dtypes`, ValueError for a device other than the first tensor's."""
    if value.dtype not in dtypes:
        raise TypeError(f"{where}: {name} is {value.dtype}; allowed: {', '.join(map(str, dtypes))}")
    if value.device != first.device:
        raise ValueError(
            f"{where}: {name} is on {value.device} and {first_name} on {first.device}; move one to the other"
        )


def check_gets_no_gradient(where: str, name: str, value: torch.Tensor | None) -> None:
    """Raises ValueError for a tensor that requires a gradient it would not get. An omitted argument is None."""
    if value is not None and torch.is_grad_enabled() and value.requires_grad:
        raise ValueError(
            f"{where}: {name} requires a gradient and gets none; pass {name}.detach(), or use torch.no_grad()"
        )


def check_get_no_gradients(where: str, **values: torch.Tensor | None) -> None:
    """check_gets_no_gradient of each argument by name."""
    for name, value in values.items():
        check_gets_no_gradient(where, name, value)
