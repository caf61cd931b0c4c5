# SPDX-License-Identifier: MIT
"""Which of vLLM's platforms our kernels are for."""

from __future__ import annotations

from typing import Any

_TARGETS = ((9, 4), (9, 5))  # what ROCm's torch says of gfx942 and of gfx950


def is_of_targets(capability: Any) -> bool:
    """Of vLLM's DeviceCapability; None is that of a platform that has none, and a CPU is simulated."""
    return capability is None or (capability.major, capability.minor) in _TARGETS
