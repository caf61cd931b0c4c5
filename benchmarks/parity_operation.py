# SPDX-License-Identifier: MIT
"""What the parity of an operation is made of: its cases, the tensors compared, and the rows reported.

A result is compared with float64 from the same rounded inputs, and its error with that of PyTorch in the same dtype.
PyTorch computes each in two orders of operations or more; the one that is further off counts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from parity_covering import pairwise

from hipkittens._accuracy import compare
from hipkittens.operations._record import DTYPES as DTYPES
from hipkittens.operations._tensors import with_gaps as with_gaps

TARGETS = ("gfx942", "gfx950")


@dataclass(frozen=True)
class Result:
    """One tensor of ours, PyTorch's in each of its orders, and the float64 one.

    magnitude    the largest sum of absolute values that an element is made of: hipkittens/_accuracy.py
    exact        no error is allowed but one rounding to the result's dtype
    """

    name: str
    ours: torch.Tensor
    baselines: Sequence[torch.Tensor]
    reference: torch.Tensor
    magnitude: float
    exact: bool = False


@dataclass(frozen=True)
class Case:
    operation: str
    target: str
    properties: dict[str, Any]  # values that JSON keeps
    seed: int = 0

    def __str__(self) -> str:
        words = (f"{name}={value}" for name, value in self.properties.items())
        return " ".join([*words, f"seed={self.seed}"]).replace(", ", ",")

    def to_json(self) -> str:
        return json.dumps(self.__dict__, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Case:
        return Case(**json.loads(text))


@dataclass(frozen=True)
class Operation:
    """run takes a target, the properties and a seed.

    draws replaces a property's listed values in random sweeps; extra cases join every covering array.
    """

    name: str
    factors: dict[str, Sequence[Any]]
    run: Callable[[str, dict[str, Any], int], list[Result]]
    draws: dict[str, Callable[[random.Random], Any]] = field(default_factory=dict)
    extra: Sequence[dict[str, Any]] = ()

    def cases(self, targets: Sequence[str] = TARGETS) -> Iterator[Case]:
        for target in targets:
            covering = pairwise(self.factors, seed=TARGETS.index(target))
            defaults = {name: values[0] for name, values in self.factors.items()}
            for number, properties in enumerate([*covering, *({**defaults, **case} for case in self.extra)]):
                yield Case(self.name, target, properties, number)

    def cases_over_targets(self) -> Iterator[Case]:
        """About half as many: the target is one more property, so each pair of values may meet on one of them only."""
        for number, properties in enumerate(pairwise({"target": TARGETS, **self.factors}, seed=len(TARGETS))):
            yield Case(self.name, properties.pop("target"), properties, number)

    def random_cases(self, count: int, seed: int, targets: Sequence[str] = TARGETS) -> Iterator[Case]:
        choose = random.Random(seed)
        for number in range(count):
            properties = {
                name: self.draws[name](choose) if name in self.draws else choose.choice(values)
                for name, values in self.factors.items()
            }
            yield Case(self.name, choose.choice(list(targets)), properties, seed + number)


FEWEST_ELEMENTS = 128  # the largest of a handful of rounding errors says little


def compare_case(operation: Operation, case: Case, draws: int = 1) -> list[dict[str, Any]]:
    """One row per tensor compared. Results are computed `draws` times, small ones more often, from other values, and compared
    as one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these problems are too small for more
    try:
        results = operation.run(case.target, case.properties, case.seed)
        smallest = max(1, min(result.reference.numel() for result in results))
        more = [
            operation.run(case.target, case.properties, case.seed + 1000 * number)
            for number in range(1, max(draws, min(-(-FEWEST_ELEMENTS // smallest), 16)))
        ]
        return [_row(case, _together(each) if more else each[0]) for each in zip(results, *more, strict=True)]
    finally:
        torch.set_num_threads(threads)


def _together(results: Sequence[Result]) -> Result:
    def rows(tensors):
        return torch.cat([value.reshape(-1, value.shape[-1]) for value in tensors])

    return Result(
        results[0].name,
        rows(result.ours for result in results),
        [rows(values) for values in zip(*(result.baselines for result in results), strict=True)],
        rows(result.reference for result in results),
        max(result.magnitude for result in results),
        results[0].exact,
    )


def _row(case: Case, result: Result) -> dict[str, Any]:
    row: dict[str, Any] = {
        "op": f"{case.operation}.{result.name}" if result.name else case.operation,
        "target": case.target,
        "case": str(case),
    }
    if result.exact:
        same = torch.equal(result.ours.double(), result.reference.to(result.ours.dtype).double())
        return row | dict.fromkeys(
            ("ratio_max", "ratio_rms", "ratio_to_better"), 0.0 if same else float("inf")
        )
    # float16 has no smaller step than 2^-24.
    magnitude = result.magnitude + (result.ours.dtype == torch.float16)
    found = [compare(result.ours, other, result.reference, magnitude) for other in result.baselines]
    ratio_max, ratio_rms = min(c.ratio_max for c in found), min(c.ratio_rms for c in found)
    return row | {
        "ratio_max": ratio_max,
        "ratio_rms": ratio_rms,
        # Beside the order that serves PyTorch best.
        "ratio_to_better": max(max(c.ratio_max, c.ratio_rms) for c in found),
        "max_ours": found[0].max_ours,
        "max_torch": max(c.max_torch for c in found),
        "rms_ours": found[0].rms_ours,
        "rms_torch": max(c.rms_torch for c in found),
        "row_error_ours": row_error(result.ours, result.reference),
        "row_error_torch": max(row_error(other, result.reference) for other in result.baselines),
        "bias_ours": bias(result.ours, result.reference),
        "bias_torch": max((bias(other, result.reference) for other in result.baselines), key=abs),
    }


def row_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest of |value - reference| / |reference| over rows (the last dimension); rows of zeros must be zeros."""
    if not reference.numel():
        return 0.0
    error, norm = (value.double() - reference).norm(dim=-1), reference.norm(dim=-1)
    return torch.where(norm > 0, error / norm, torch.where(error > 0, torch.inf, 0.0)).max().item()


def bias(value: torch.Tensor, reference: torch.Tensor) -> float:
    """How much larger in absolute value than the reference, on average: truncation gives a negative number."""
    total = reference.abs().sum().item()
    return ((value.double() - reference) * reference.sign()).sum().item() / total if total else 0.0


def leaf(value: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor that takes a gradient; without a dtype of its own, with value's storage and strides."""
    return value.detach().to(dtype or value.dtype).requires_grad_()


def dense_leaf(value: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The same without gaps: PyTorch's own kernels may read those, NaN and all."""
    return (
        value.detach().to(dtype or value.dtype).clone(memory_format=torch.contiguous_format).requires_grad_()
    )
