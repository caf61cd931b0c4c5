# SPDX-License-Identifier: MIT
"""How far the cycle model was off on measured kernels that it was not fitted on: printed next to modelled figures.

model_error.json has the errors by class; benchmarks/calibration.py --errors writes it, from rows measured on real GPUs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import _timing
from .limits import limit
from .problems import Problem

BOUNDS = ("matrix", "memory", "small")
# Below this minimum time, launch, latency and grid tails dominate: such rows are a separate class.
SMALL_MICROSECONDS = 5.0
# Tuning logs do not state which of these two chips their rows are from; they are modelled as the second.
_MEASURED_AS = {"MI325X": "MI300X", "MI350X": "MI355X"}
_CHIP_IS_NAMED = ("attention", "attention_backward")  # in the tables from which these errors come
_LEAST_ROWS = 4  # fewer are not representative


@dataclass(frozen=True)
class Cell:
    """Measured rows of one kernel family on one chip with the same bound: one entry of model_error.json.

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
    """The error on measured rows of the same operation on the same chip.

    percent  mean of |modelled / measured - 1|, each family of kernels weighted equally; None: not calibrated
    bias     mean of modelled / measured - 1: negative if the model is too fast; None: not calibrated
    rows     the number of measured rows
    like     which rows these are, or of what there are too few
    """

    percent: float | None
    bias: float | None
    rows: int
    like: str

    @property
    def text(self) -> str:
        """For example "±13 % (bias -8 %) on 30 measured rows: fmha_v3_fwd, MI355X, matrix-bound", or "not calibrated: ..."."""
        if self.percent is None:
            return f"not calibrated: {self.like}"
        return f"±{self.percent:.0f} % (bias {self.bias:+.0f} %) on {self.rows} measured rows: {self.like}"

    @property
    def short(self) -> str:
        """For example "±13 %", or "not calibrated"."""
        return "not calibrated" if self.percent is None else f"±{self.percent:.0f} %"


@functools.cache
def cells() -> tuple[Cell, ...]:
    text = Path(__file__).with_name("model_error.json").read_text()
    return tuple(Cell(**entry) for entry in json.loads(text)["cells"])


def bound_of(problem: Problem, device: str) -> str:
    """What determines the minimum time of `problem`: "matrix" or "memory", or "small" if that time is below 5 µs."""
    least = limit(problem, device)
    return "small" if least.microseconds < SMALL_MICROSECONDS else least.unit


def error_of(problem: Problem, device: str) -> ModelError:
    """The error to report with a modelled time of `problem`. ValueError for an unknown device."""
    return error_for(problem.operation, device, bound_of(problem, device))


def error_for(operation: str, device: str, bound: str) -> ModelError:
    """The error on measured rows of this operation and device with this bound ("matrix", "memory", "small").

    If there are fewer than four, rows of the same operation and device with any bound are used. Rows of other operations,
    number formats or chips are not representative: then it is not calibrated. ValueError for an unknown device or bound.
    """
    if device not in _timing.DEVICES:
        raise ValueError(f"device is {device!r}; allowed: {', '.join(_timing.DEVICES)}")
    if bound not in BOUNDS:
        raise ValueError(f"bound is {bound!r}; allowed: {', '.join(BOUNDS)}")
    chip = device if operation in _CHIP_IS_NAMED else _MEASURED_AS.get(device, device)
    own = [cell for cell in cells() if (cell.operation, cell.chip) == (operation, chip)]
    for found in ([cell for cell in own if cell.bound == bound], own):
        if sum(cell.rows for cell in found) >= _LEAST_ROWS:
            return _summary(found)
    return ModelError(
        None, None, 0, f"fewer than {_LEAST_ROWS} measured rows of {operation.replace('_', ' ')} on {chip}"
    )


def unknown_problem(device: str) -> ModelError:
    """For a launch whose problem is unknown."""
    return ModelError(None, None, 0, f"what this launch computes on {device} is not known")


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
