# SPDX-License-Identifier: MIT
"""The numbers that are fitted: for each chip and matrix format, measured = fixed_us + time_scale x modelled.

fixed_us is what a launch costs beside the cycles that are modelled; time_scale is the ratio of the clock that the model
assumes to the one the chip held, and of whatever else is proportional to the time.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

_LEAST_ROWS = 4
_LARGEST_FIXED_US = 12.0
_STEP_US = 0.05


@dataclasses.dataclass(frozen=True)
class Fitted:
    chip: str
    matrix_format: str
    fixed_us: float
    time_scale: float
    rows: int

    def __call__(self, modelled_us: float) -> float:
        return self.fixed_us + self.time_scale * modelled_us


def _weighted_median(values: list[tuple[float, float]]) -> float:
    ordered, total, sum_ = sorted(values), sum(weight for _, weight in values), 0.0
    for value, weight in ordered:
        sum_ += weight
        if sum_ >= total / 2:
            return value
    raise AssertionError("no values")


def _least_absolute(points: list[tuple[float, float]]) -> tuple[float, float]:
    """fixed >= 0 and scale that minimise the mean of |fixed + scale x modelled - measured| / measured."""
    best = (float("inf"), 0.0, 1.0)
    for step in range(round(_LARGEST_FIXED_US / _STEP_US) + 1):
        fixed = step * _STEP_US
        # For a given fixed part the best scale is a weighted median of the ratios.
        ratios = [((measured - fixed) / modelled, modelled / measured) for modelled, measured in points]
        scale = max(0.0, _weighted_median(ratios))
        error = sum(abs(fixed + scale * modelled - measured) / measured for modelled, measured in points)
        best = min(best, (error, fixed, scale))
    return best[1], best[2]


@dataclasses.dataclass(frozen=True)
class Fit:
    """What was fitted, how the model was run for it, and the keys of the rows that it was fitted on."""

    settings: dict
    fitted: tuple[Fitted, ...]
    rows: tuple[str, ...]

    def predict(self, chip: str, matrix_format: str, modelled_us: float) -> float:
        """The modelled time itself where there were too few rows to fit on."""
        for entry in self.fitted:
            if (entry.chip, entry.matrix_format) == (chip, matrix_format):
                return entry(modelled_us)
        return modelled_us

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Fit:
        text = json.loads(path.read_text())
        return cls(text["settings"], tuple(Fitted(**entry) for entry in text["fitted"]), tuple(text["rows"]))


def fit(points: Iterable[tuple[str, str, str, float, float]], settings: dict) -> Fit:
    """From (key, chip, matrix format, modelled µs, measured µs) of the rows that may be fitted on."""
    groups, keys = collections.defaultdict(list), []
    for key, chip, matrix_format, modelled, measured in points:
        groups[chip, matrix_format].append((modelled, measured))
        keys.append(key)
    fitted = [
        Fitted(*group, *_least_absolute(values), len(values))
        for group, values in sorted(groups.items())
        if len(values) >= _LEAST_ROWS
    ]
    return Fit(settings, tuple(fitted), tuple(sorted(keys)))
