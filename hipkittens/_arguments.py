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
