# SPDX-License-Identifier: MIT
"""Which of vLLM's platforms our kernels support."""

from __future__ import annotations

from typing import Any

# As reported by ROCm's torch.
_GFX942, _GFX950 = (9, 4), (9, 5)


def is_of_targets(capability: Any) -> bool:
    """Whether vLLM's DeviceCapability is one of our targets. None is a platform without one, and a CPU is simulated."""
    return capability is None or (capability.major, capability.minor) in (_GFX942, _GFX950)


def has_scaled_instructions(capability: Any) -> bool:
    """Whether it is the target whose matrix instructions multiply MX formats. None as above."""
    return capability is None or (capability.major, capability.minor) == _GFX950
