# SPDX-License-Identifier: MIT
"""A kernel of each family on one device, forward and backward, compared with PyTorch: what `hipkittens doctor` runs.

`python -m hipkittens._doctor_kernels cuda:0` does so in a separate process, which may crash or hang without harm.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from . import _backend, _installation, operations
from ._accuracy import compare
from ._examples import inputs_of
from .operations._record import Example

SECONDS = 300  # the limit for all of them on a GPU


def families() -> dict[str, Example]:
    """One example for each operation: the one meant for this, or otherwise the first."""
    found = {}
    for operation in operations.every():
        checks = operations.checks(operation)
        example = checks.doctor or next(iter(checks.examples), None)
        if example is not None:
            found[operation.name] = example
    return found


def _results(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], gradients: bool
) -> list[torch.Tensor]:
    leaves = [value.detach().requires_grad_(gradients) for value in inputs]
    y = function(*leaves)
    if not gradients:
        return [y.detach().cpu()]
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(y.shape, generator=generator).to(torch.bfloat16).to(y)
    return [value.detach().cpu() for value in (y, *torch.autograd.grad(y, leaves, grad))]


def run_family(name: str, family: Example, device: str) -> dict[str, Any]:
    """device is "gfx942" or "gfx950", simulated, or "cuda:N". The row's error is None when results were compared."""
    row: dict[str, Any] = {"family": name, "device": device, "ratio": None, "ok": False, "error": None}
    inputs = inputs_of(family, torch.Generator().manual_seed(0))
    simulated = device in _installation.TARGETS
    try:
        started = time.perf_counter()
        with _backend.simulate(device) if simulated else contextlib.nullcontext():
            placed = inputs if simulated else [value.to(device) for value in inputs]
            ours = _results(family.ours, placed, family.gradients)
        row["seconds"] = time.perf_counter() - started
        theirs = _results(family.theirs, inputs, family.gradients)
        reference = _results(family.theirs, [value.double() for value in inputs], family.gradients)
        comparisons = [
            compare(*results, results[-1].abs().max().item())
            for results in zip(ours, theirs, reference, strict=True)
        ]
    except Exception as error:
        return row | {"error": f"{type(error).__name__}: {error}"}
    return row | {
        "ratio": max(max(each.ratio_max, each.ratio_rms) for each in comparisons),
        "ok": all(each.passes for each in comparisons),
    }


def run_device(device: str) -> list[dict[str, Any]]:
    """A row per family. GPUs are tested in a separate process; a crash or hang of it is reported."""
    if device in _installation.TARGETS:
        return [run_family(*family, device) for family in families().items()]
    command = [sys.executable, "-m", "hipkittens._doctor_kernels", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        error = f"no answer after {SECONDS} s"
    except json.JSONDecodeError:
        last = done.stderr.strip().splitlines()[-1:]
        error = f"the process ended with status {done.returncode}: {''.join(last)}"
    return [{"family": "all", "device": device, "ratio": None, "ok": False, "error": error}]


if __name__ == "__main__":
    json.dump([run_family(*family, sys.argv[1]) for family in families().items()], sys.stdout)
