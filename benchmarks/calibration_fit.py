# SPDX-License-Identifier: MIT
"""The fitted numbers: a time added to the modelled one, and the clocks that convert measured times to cycles.

For each chip and matrix format, measured = fixed_us + time_scale x modelled. fixed_us is the cost of a launch in addition to the
modelled cycles; time_scale is the ratio of the clock that the model assumes to the one the chip held, and includes
everything else that is proportional to the time.

The clock at which a row was measured is not recorded. For each family, chip and bound, the clock is chosen with which the
modelled cycles fit the measured times best: the remaining error is the error in cycles between rows of such a class.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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


@dataclasses.dataclass(frozen=True)
class Clock:
    family: str
    chip: str
    bound: str
    mhz: float
    rows: int


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
    """The fitted numbers, the settings with which the model was run, how rows were sampled, the keys of the rows that were fitted on, and
    the orders (`Row.order`) of all rows that were set apart for fitting: no error is reported on any of them."""

    settings: dict
    sample: dict
    fitted: tuple[Fitted, ...]
    clocks: tuple[Clock, ...]
    rows: tuple[str, ...]
    set_apart: tuple[str, ...]

    def predict(self, chip: str, matrix_format: str, modelled_us: float) -> float:
        """The fitted time, or the modelled one where there were too few rows to fit on."""
        for entry in self.fitted:
            if (entry.chip, entry.matrix_format) == (chip, matrix_format):
                return entry(modelled_us)
        return modelled_us

    def clock(self, family: str, chip: str, bound: str) -> float | None:
        """MHz. None: there were too few rows to fit on."""
        for entry in self.clocks:
            if (entry.family, entry.chip, entry.bound) == (family, chip, bound):
                return entry.mhz
        return None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Fit:
        text = json.loads(path.read_text())
        return cls(
            text["settings"],
            text["sample"],
            tuple(Fitted(**entry) for entry in text["fitted"]),
            tuple(Clock(**entry) for entry in text["clocks"]),
            tuple(text["rows"]),
            tuple(text["set_apart"]),
        )


def _clock(points: list[tuple[float, float]]) -> float:
    """MHz that minimises the mean of |cycles / (MHz x measured µs) - 1| over (cycles, measured µs)."""
    return 1 / _weighted_median([(measured / cycles, cycles / measured) for cycles, measured in points])


def fit(records: Iterable[Mapping[str, Any]], settings: dict, sample: dict, set_apart: Iterable[str]) -> Fit:
    """Fits on records of rows that may be fitted on, with key, chip, family, bound, matrix_format, predicted_us, cycles and
    measured_us."""
    times, cycles, keys = collections.defaultdict(list), collections.defaultdict(list), []
    for record in records:
        measured = record["measured_us"]
        times[record["chip"], record["matrix_format"]].append((record["predicted_us"], measured))
        cycles[record["family"], record["chip"], record["bound"]].append((record["cycles"], measured))
        keys.append(record["key"])
    fitted = [
        Fitted(*group, *_least_absolute(points), len(points))
        for group, points in sorted(times.items())
        if len(points) >= _LEAST_ROWS
    ]
    clocks = [
        Clock(*group, _clock(points), len(points))
        for group, points in sorted(cycles.items())
        if len(points) >= _LEAST_ROWS
    ]
    return Fit(settings, sample, tuple(fitted), tuple(clocks), tuple(sorted(keys)), tuple(sorted(set_apart)))
