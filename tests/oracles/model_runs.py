# SPDX-License-Identifier: MIT
"""Records which kernels runs of other projects' models launch, and which experts they choose."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

import hipkittens
from hipkittens import _simulator


@contextlib.contextmanager
def launched(target: str, **options: Any) -> Iterator[dict[str, Any]]:
    """hipkittens.simulate, which yields the launches and findings afterwards."""
    found: dict[str, Any] = {}
    _simulator.record_launches(True)
    try:
        with hipkittens.simulate(target, **options) as run:
            yield found
        found["launches"] = Counter(each["kernel"] for each in _simulator.recorded_launches())
        found["findings"] = [str(each) for each in run.findings]
    finally:
        _simulator.record_launches(False)


@contextlib.contextmanager
def chosen_experts(
    model: torch.nn.Module, router: str, of: Callable[[Any], torch.Tensor]
) -> Iterator[list[torch.Tensor]]:
    """The experts of each token, layer by layer, as `of` extracts them from the results of modules whose names end with `router`."""
    found: list[torch.Tensor] = []
    routers = [each for name, each in model.named_modules() if name.endswith(router)]
    handles = [
        each.register_forward_hook(lambda module, given, result: found.append(of(result))) for each in routers
    ]
    yield found
    for handle in handles:
        handle.remove()
