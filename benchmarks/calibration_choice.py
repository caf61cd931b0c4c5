# SPDX-License-Identifier: MIT
"""The rank that each model gives the kernel chosen by a tuning log, among all kernels of its family at that problem.

AITER's tuner measures every kernel of a family at a shape, and its log keeps the fastest. So for each problem, a log tells that
dozens of kernels were no faster than the chosen one, all of them measured in one session. The other times are not kept, but a
model that ranks well puts the chosen kernel first.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import calibration_baselines as baselines
import calibration_launch
from calibration_launch import Launch
from calibration_rows import CannotRun, Row

from tests.oracles.aiter import wheel
from tests.oracles.aiter.launch import kernel

_LARGEST = 60e9  # operations of a problem: dozens of kernels run at each


@dataclasses.dataclass(frozen=True)
class Choice:
    """One problem: each model's predictions for its kernels. `chosen` is the index of the kernel in the log."""

    key: str
    bound: str
    chosen: int
    predictions: Mapping[str, tuple[float, ...]]

    @property
    def kernels(self) -> int:
        return len(next(iter(self.predictions.values())))

    def place(self, model: str) -> float:
        """The share of the other kernels that the model ranks ahead of the chosen one, ties counting half: 0 is right, 0.5 chance."""
        times = self.predictions[model]
        own = times[self.chosen]
        before = sum(time < own for time in times) + 0.5 * (sum(time == own for time in times) - 1)
        return before / (len(times) - 1)

    def excess(self, model: str) -> float:
        """The predicted time of the chosen kernel relative to that of the model's favorite, minus 1."""
        times = self.predictions[model]
        return times[self.chosen] / min(times) - 1


def family(name: str) -> list[str]:
    """The code objects of the wheel that differ from this one only in the tile."""

    def stem(name: str) -> str:
        return re.sub(r"_\d+x\d+(_pf\d)?\.co$", r"\1", name)

    return sorted(each for each in wheel.objects() if stem(each) == stem(name))


def problems(held_out: Iterable[tuple[Row, Launch]], count: int) -> list[tuple[Row, Launch]]:
    """Up to `count` matrix products of each family, chip and bound, in the order of their hashes; where several kernels were measured
    at a problem, the fastest."""
    fastest: dict[tuple, tuple[Row, Launch]] = {}
    for row, launch in held_out:
        if row.is_mixture or launch.operations > _LARGEST:
            continue
        if row.problem not in fastest or row.measured_us < fastest[row.problem][0].measured_us:
            fastest[row.problem] = row, launch
    groups: dict[tuple, list[tuple[Row, Launch]]] = collections.defaultdict(list)
    for row, launch in sorted(fastest.values(), key=lambda pair: pair[0].order):
        groups[row.family, row.chip, baselines.bound(row, launch)].append((row, launch))
    return [pair for group in groups.values() for pair in group[:count]]


def kernels(row: Row) -> list[tuple[Row, Launch]]:
    """All kernels of the row's family that accept its problem, with the log's split of K."""
    found = []
    for name in family(row.name):
        other = dataclasses.replace(row, name=name, symbol=kernel(name).metadata.name)
        try:
            found.append((other, calibration_launch.prepare(other)))
        except CannotRun:
            continue
    return found


def launches(held_out: Iterable[tuple[Row, Launch]], count: int) -> list[tuple[Row, Launch]]:
    """Every launch for which `choices` queries the model."""
    return [each for row, _ in problems(held_out, count) for each in kernels(row)]


def choices(
    held_out: Iterable[tuple[Row, Launch]],
    count: int,
    model: Callable[..., Mapping[str, float]],
    two_parameters: baselines.TwoParameters,
) -> list[Choice]:
    """One for each problem with more than one kernel. `model` is that of benchmarks/calibration.py, which stores its results."""
    result = []
    for row, launch in problems(held_out, count):
        candidates = kernels(row)
        if len(candidates) < 2:
            continue
        predictions: dict[str, list[Any]] = {
            "cycle model": [
                model(other.key, functools.partial(calibration_launch.modelled, other, its))["predicted_us"]
                for other, its in candidates
            ],
            "Origami's formulas": [baselines.origami(*pair) for pair in candidates],
            "two parameters, of all fit rows": [two_parameters(*pair) for pair in candidates],
        }
        known = {model: tuple(times) for model, times in predictions.items() if None not in times}
        chosen = next(index for index, (other, _) in enumerate(candidates) if other.name == row.name)
        result.append(Choice(row.key, baselines.bound(row, launch), chosen, known))
    return result
