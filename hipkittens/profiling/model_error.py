# SPDX-License-Identifier: MIT
"""How far the cycle model was off on measured kernels that it was not fitted on: what to print beside a modelled figure.

model_error.json has the errors by class; benchmarks/calibration.py --errors writes it, from rows measured on real GPUs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import _timing
from .limits import limit
from .problems import Problem

BOUNDS = ("matrix", "memory", "small")
# Below this least time launch, latency and the ends of the grid dominate: such rows are a class of their own.
SMALL_MICROSECONDS = 5.0
# Measured rows do not say which of these two chips they are of; they are modelled as the second.
_MEASURED_AS = {"MI325X": "MI300X", "MI350X": "MI355X"}
_LEAST_ROWS = 4  # fewer say little: the next wider class is taken


@dataclass(frozen=True)
class Cell:
    """Measured rows of one kernel family on one chip, all bound by the same: one entry of model_error.json.

    error, bias, worst  per cent: mean of |modelled / measured - 1|, mean of modelled / measured - 1, and the largest of the first
    """

    operation: str
    family: str
    chip: str
    bound: str
    rows: int
    error: float
    bias: float
    worst: float


@dataclass(frozen=True)
class ModelError:
    """The error of the class of measured rows that is most like a modelled launch.

    percent  mean of |modelled / measured - 1|, each family of kernels counting alike
    bias     mean of modelled / measured - 1: negative where the model is too fast
    rows     how many were measured
    like     which rows these are
    """

    percent: float
    bias: float
    rows: int
    like: str

    @property
    def text(self) -> str:
        """Such as "±13 % on 30 measured rows: f4gemm, MI355X, memory-bound"."""
        return f"±{self.percent:.0f} % on {self.rows} measured row{'s' * (self.rows != 1)}: {self.like}"


@functools.cache
def cells() -> tuple[Cell, ...]:
    text = Path(__file__).with_name("model_error.json").read_text()
    return tuple(Cell(**entry) for entry in json.loads(text)["cells"])


def bound_of(problem: Problem, device: str) -> str:
    """What sets the least time of `problem`: "matrix" or "memory", or "small" where that time is below 5 µs."""
    least = limit(problem, device)
    return "small" if least.microseconds < SMALL_MICROSECONDS else least.unit


def error_of(problem: Problem, device: str) -> ModelError:
    """The error that a modelled time of `problem` should carry. ValueError for an unknown device."""
    return error_for(problem.operation, device, bound_of(problem, device))


def error_of_launch(launch: _timing.ModelledLaunch) -> ModelError:
    """The same of a launch of which nobody says what problem it solves: by device, and by which units it keeps busy."""
    bound = "matrix" if max(launch.busy, key=launch.busy.__getitem__) == "matrix" else "memory"
    return error_for("any", launch.device, "small" if launch.microseconds < SMALL_MICROSECONDS else bound)


def error_for(operation: str, device: str, bound: str) -> ModelError:
    """The error on measured rows of this operation, device and bound ("matrix", "memory", "small").

    Where there are fewer than four, rows of the same operation and bound on another chip count as well, then of any
    operation with that bound, then all; `like` names which were taken. ValueError for an unknown device or bound.
    """
    if device not in _timing.DEVICES:
        raise ValueError(f"device is {device!r}; allowed: {', '.join(_timing.DEVICES)}")
    if bound not in BOUNDS:
        raise ValueError(f"bound is {bound!r}; allowed: {', '.join(BOUNDS)}")
    chip = _MEASURED_AS.get(device, device)
    for matches in _classes(operation, chip, bound):
        found = [cell for cell in cells() if matches(cell)]
        if sum(cell.rows for cell in found) >= _LEAST_ROWS:
            break
    return _summary(found)


def _classes(operation: str, chip: str, bound: str) -> Iterator[Callable[[Cell], bool]]:
    yield lambda cell: (cell.operation, cell.chip, cell.bound) == (operation, chip, bound)
    yield lambda cell: (cell.operation, cell.bound) == (operation, bound)
    yield lambda cell: (cell.chip, cell.bound) == (chip, bound)
    yield lambda cell: cell.bound == bound
    yield lambda cell: True


def _summary(found: list[Cell]) -> ModelError:
    families = dict.fromkeys(cell.family for cell in found)

    def mean(value: Callable[[Cell], float]) -> float:
        means = []
        for family in families:
            own = [cell for cell in found if cell.family == family]
            means.append(sum(cell.rows * value(cell) for cell in own) / sum(cell.rows for cell in own))
        return sum(means) / len(means)

    parts = [
        " and ".join(dict.fromkeys(value(cell) for cell in found))
        for value in (
            lambda cell: cell.family,
            lambda cell: cell.chip,
            lambda cell: cell.bound if cell.bound == "small" else f"{cell.bound}-bound",
        )
    ]
    return ModelError(
        mean(lambda cell: cell.error),
        mean(lambda cell: cell.bias),
        sum(cell.rows for cell in found),
        ", ".join(parts),
    )
