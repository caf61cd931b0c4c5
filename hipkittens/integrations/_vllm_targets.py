# SPDX-License-Identifier: MIT
"""Which of vLLM's platforms our kernels support."""

from __future__ import annotations

from typing import Any

_TARGETS = ((9, 4), (9, 5))  # as reported by ROCm's torch for gfx942 and gfx950


def is_of_targets(capability: Any) -> bool:
    """Whether vLLM's DeviceCapability is one of our targets. None is a platform without one, and a CPU is simulated."""
    return capability is None or (capability.major, capability.minor) in _TARGETS
