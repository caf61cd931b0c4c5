# SPDX-License-Identifier: MIT
"""torch.autocast, implemented in Python: registering the operators with it would require one fixed dtype."""

from __future__ import annotations

import torch

# Devices where operators run and autocast exists. torch.amp.is_autocast_available would also tell, but torch 2.10 cannot compile it.
_DEVICES = ("cpu", "cuda")


def is_on(device: torch.device) -> bool:
    """Whether torch.autocast is enabled for tensors of this device."""
    return device.type in _DEVICES and torch.is_autocast_enabled(device.type)


def to_autocast_dtype(*tensors: torch.Tensor | None) -> tuple:
    """The tensors, with floating-point ones converted to autocast's dtype if it is enabled for the first one's device."""
    first = tensors[0]
    if not isinstance(first, torch.Tensor) or not is_on(first.device):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(
        value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in tensors
    )
