# SPDX-License-Identifier: MIT
"""The parts of an operation's parity test: its cases, the tensors compared, and the rows reported.

A result is compared with float64 from the same rounded inputs, and its error with that of one baseline, in the largest error
and in the RMS. A baseline is PyTorch's own operation in that dtype if there is one, or else the same operation written
out. Which of the two is used follows from the properties of a case; its rows name it.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from parity_covering import pairwise

import hipkittens
from hipkittens._accuracy import Comparison, compare, mean_of
from hipkittens.operations._record import DTYPES as DTYPES
from hipkittens.operations._tensors import with_gaps as with_gaps

TARGETS = ("gfx942", "gfx950")
ARITHMETIC = (
    "fast",
    "exact",
)  # of hipkittens.simulate: the host's sums, or those of the matrix cores as published
_arithmetic = contextvars.ContextVar("arithmetic", default="fast")


def simulated(target: str, arithmetic: str | None = None) -> hipkittens.simulate:
    """The context of every case: NaN in memory that was not written, one thread, the arithmetic of the case unless one is named."""
    return hipkittens.simulate(target, checks=True, threads=1, arithmetic=arithmetic or _arithmetic.get())


@contextlib.contextmanager
def _arithmetic_of(case: Case) -> Iterator[None]:
    token = _arithmetic.set(case.arithmetic)
    try:
        yield
    finally:
        _arithmetic.reset(token)


@dataclass(frozen=True)
class Result:
    """One tensor of ours, the baseline's, and the float64 one.

    baseline_name  what the baseline computed, as the tables show it
    magnitude      the largest sum of absolute values that an element consists of: hipkittens/_accuracy.py
    exact          no error is allowed except one rounding to the result's dtype
    """

    name: str
    ours: torch.Tensor
    baseline: torch.Tensor
    reference: torch.Tensor
    magnitude: float
    baseline_name: str
    exact: bool = False


@dataclass(frozen=True)
class Case:
    operation: str
    target: str
    properties: dict[str, Any]  # values that JSON preserves
    seed: int = 0
    arithmetic: str = "fast"

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.properties.items()]
        words += [f"seed={self.seed}"] + [f"arithmetic={self.arithmetic}"] * (self.arithmetic != "fast")
        return " ".join(words).replace(", ", ",")

    def to_json(self) -> str:
        return json.dumps(self.__dict__, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Case:
        return Case(**json.loads(text))


@dataclass(frozen=True)
class Operation:
    """run accepts a target, the properties and a seed.

    draws replaces a property's listed values in random sweeps; extra cases are added to every covering array. adapt converts drawn
    properties to valid ones, where not all values can be combined.
    """

    name: str
    factors: dict[str, Sequence[Any]]
    run: Callable[[str, dict[str, Any], int], list[Result]]
    draws: dict[str, Callable[[random.Random], Any]] = field(default_factory=dict)
    extra: Sequence[dict[str, Any]] = ()
    adapt: Callable[[dict[str, Any]], dict[str, Any]] = dict

    def cases(self, targets: Sequence[str] = TARGETS) -> Iterator[Case]:
        for target in targets:
            covering = pairwise(self.factors, seed=TARGETS.index(target))
            for number, properties in enumerate([*covering, *self._whole_extra()]):
                yield Case(self.name, target, self.adapt(properties), number)

    def _whole_extra(self) -> list[dict[str, Any]]:
        defaults = {name: values[0] for name, values in self.factors.items()}
        return [{**defaults, **case} for case in self.extra]

    def cases_over_targets(self) -> Iterator[Case]:
        """About half as many: the target is one more property, so a pair of values may occur on one only. Extra cases run on both."""
        covering = pairwise({"target": TARGETS, **self.factors}, seed=len(TARGETS))
        extra = [{"target": target, **case} for case in self._whole_extra() for target in TARGETS]
        for number, properties in enumerate([*covering, *extra]):
            yield Case(self.name, properties.pop("target"), self.adapt(properties), number)

    def random_cases(self, count: int, seed: int, targets: Sequence[str] = TARGETS) -> Iterator[Case]:
        choose = random.Random(seed)
        for number in range(count):
            properties = {
                name: self.draws[name](choose) if name in self.draws else choose.choice(values)
                for name, values in self.factors.items()
            }
            yield Case(self.name, choose.choice(list(targets)), self.adapt(properties), seed + number)


FEWEST_ELEMENTS = 128  # the maximum of a handful of rounding errors says little


MOST_REPEATS = 16
# Larger results next to a small one are taken from the first draw alone: sixteen of them would be a gigabyte.
MOST_ELEMENTS_AGAIN = 1 << 16


def compare_case(operation: Operation, case: Case, draws: int = 1) -> list[dict[str, Any]]:
    """One row per tensor compared.

    Small results, and those next to them, are computed from up to 16 draws of values, which count as one. `draws` repeats all of this
    with other values each time: the largest error is then the mean of those of the draws, and the RMS is over all of them.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these problems are too small for more
    try:
        with _arithmetic_of(case):
            # One draw at a time: several results with their references may need a gigabyte.
            judged = [
                [
                    _judge(result)
                    for result in _draw(operation, case, case.seed + 1000 * MOST_REPEATS * number)
                ]
                for number in range(draws)
            ]
        return [_row(case, each) for each in zip(*judged, strict=True)]
    finally:
        torch.set_num_threads(threads)


def _draw(operation: Operation, case: Case, seed: int) -> list[Result]:
    results = operation.run(case.target, case.properties, seed)
    drawn = [[result] for result in results]
    smallest = max(1, min(result.reference.numel() for result in results))
    for number in range(1, min(-(-FEWEST_ELEMENTS // smallest), MOST_REPEATS)):
        for known, result in zip(
            drawn, operation.run(case.target, case.properties, seed + 1000 * number), strict=True
        ):
            if result.reference.numel() <= MOST_ELEMENTS_AGAIN:
                known.append(result)
    return [_together(known) if len(known) > 1 else known[0] for known in drawn]


def _together(results: Sequence[Result]) -> Result:
    def rows(tensors):
        return torch.cat([value.reshape(math.prod(value.shape[:-1]), value.shape[-1]) for value in tensors])

    return Result(
        results[0].name,
        rows(result.ours for result in results),
        rows(result.baseline for result in results),
        rows(result.reference for result in results),
        max(result.magnitude for result in results),
        results[0].baseline_name,
        results[0].exact,
    )


@dataclass(frozen=True)
class _Judged:
    """The contribution of one draw to the row of a result; pairs are of ours and of the baseline."""

    name: str
    baseline: str
    is_same: bool | None  # for exact results; the other fields are for the others
    errors: Comparison | None = None
    row_errors: tuple[float, float] = (0.0, 0.0)
    biases: tuple[float, float] = (0.0, 0.0)  # sums, relative to that of the reference
    total: float = 0.0


def _judge(result: Result) -> _Judged:
    ours, reference = result.ours, result.reference
    if result.exact:
        is_same = torch.equal(ours.double(), reference.to(ours.dtype).double())
        return _Judged(result.name, "no error", is_same)
    # The smallest step of float16 is 2^-24.
    smallest = float(ours.dtype == torch.float16)
    both = (ours, result.baseline)
    return _Judged(
        result.name,
        result.baseline_name,
        None,
        compare(*both, reference, result.magnitude + smallest),
        tuple(row_error(each, reference) for each in both),
        tuple(_sum_of_biases(each, reference) for each in both),
        reference.abs().sum().item(),
    )


def _row(case: Case, draws: Sequence[_Judged]) -> dict[str, Any]:
    first = draws[0]
    row: dict[str, Any] = {
        "op": f"{case.operation}.{first.name}" if first.name else case.operation,
        "target": case.target,
        "case": str(case),
        "baseline": first.baseline,
    }
    if first.is_same is not None:
        ratio = 0.0 if all(one.is_same for one in draws) else float("inf")
        return row | dict.fromkeys(("ratio_max", "ratio_rms"), ratio)
    found = mean_of([one.errors for one in draws])
    total = sum(one.total for one in draws)
    ours, baseline = (
        {
            "row_error": max(one.row_errors[which] for one in draws),
            "bias": sum(one.biases[which] for one in draws) / total if total else 0.0,
        }
        for which in range(2)
    )
    return row | {
        "ratio_max": found.ratio_max,
        "ratio_rms": found.ratio_rms,
        "max_ours": found.max_ours,
        "max_baseline": found.max_torch,
        "rms_ours": found.rms_ours,
        "rms_baseline": found.rms_torch,
        "row_error_ours": ours["row_error"],
        "row_error_baseline": baseline["row_error"],
        "bias_ours": ours["bias"],
        "bias_baseline": baseline["bias"],
    }


def row_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest of |value - reference| / |reference| over rows (the last dimension); rows of zeros must be zeros."""
    if not reference.numel():
        return 0.0
    error, norm = (value.double() - reference).norm(dim=-1), reference.norm(dim=-1)
    return torch.where(norm > 0, error / norm, torch.where(error > 0, torch.inf, 0.0)).max().item()


def bias(value: torch.Tensor, reference: torch.Tensor) -> float:
    """The average excess of its absolute value over the reference's: negative for truncation."""
    total = reference.abs().sum().item()
    return _sum_of_biases(value, reference) / total if total else 0.0


def _sum_of_biases(value: torch.Tensor, reference: torch.Tensor) -> float:
    return ((value.double() - reference) * reference.sign()).sum().item()


def leaf(value: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor that requires a gradient; if no dtype is passed, with value's storage and strides."""
    return value.detach().to(dtype or value.dtype).requires_grad_()


def dense_leaf(value: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The same without gaps: PyTorch's own kernels may read the gaps, including NaN."""
    return (
        value.detach().to(dtype or value.dtype).clone(memory_format=torch.contiguous_format).requires_grad_()
    )
