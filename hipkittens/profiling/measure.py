# SPDX-License-Identifier: MIT
"""Time of a call on a real GPU. Never run yet: no AMD GPU has executed this file."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .. import _timing

_FLUSHED_BYTES = 1 << 29  # twice the MALL, the largest cache of these chips
WARM_UPS, REPEATS = 10, 50


@dataclass(frozen=True)
class Measurement:
    """Microseconds of one call: median, and the 10th and 90th percentile of `repeats`."""

    median: float
    low: float
    high: float
    repeats: int


def measure(call: Callable[[], object], repeats: int = REPEATS) -> Measurement:
    """Times `call` on the current GPU with events; caches are overwritten before each repetition."""
    flush = torch.empty(_FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")
    for _ in range(WARM_UPS):
        call()
    pairs = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) * 1e3 for begin, end in pairs)
    return Measurement(
        statistics.median(times), times[len(times) // 10], times[len(times) * 9 // 10], len(times)
    )


def device_of(properties_name: str) -> str | None:
    """ "MI355X" of "AMD Instinct MI355X"; None for a GPU that there are no limits of."""
    return next((name for name in _timing.DEVICES if name in properties_name.upper()), None)
