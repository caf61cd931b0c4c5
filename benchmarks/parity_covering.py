# SPDX-License-Identifier: MIT
"""Covering arrays: few cases in which every value of a property occurs together with every value of every other one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

_CANDIDATES = 12  # tried for each new case; more make the array a little smaller


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int) -> list[dict[str, Any]]:
    """Cases, one value per factor, such that any two values of any two factors occur together in one of them.

    Greedy: each case starts from a pair that is still missing, then takes the other factors in random order, each with
    the value that meets the most values chosen so far for the first time.
    """
    choose = random.Random(seed)
    names = list(factors)
    if len(names) < 2:
        return [{names[0]: value} for value in factors[names[0]]] if names else [{}]
    missing: dict[tuple[int, int, int, int], None] = {
        (first, i, second, j): None
        for first, second in itertools.combinations(range(len(names)), 2)
        for i in range(len(factors[names[first]]))
        for j in range(len(factors[names[second]]))
    }

    def is_missing(one: tuple[int, int], other: tuple[int, int]) -> bool:
        return (*min(one, other), *max(one, other)) in missing

    def candidate() -> tuple[list[int], int]:
        first, i, second, j = choose.choice(remaining)
        chosen, gain = {first: i, second: j}, 1
        order = [factor for factor in range(len(names)) if factor not in chosen]
        choose.shuffle(order)
        for factor in order:
            values = list(range(len(factors[names[factor]])))
            choose.shuffle(values)
            new, value = max(
                (
                    (sum(is_missing((factor, value), other) for other in chosen.items()), value)
                    for value in values
                ),
                key=lambda pair: pair[0],
            )
            chosen[factor] = value
            gain += new
        return [chosen[factor] for factor in range(len(names))], gain

    cases = []
    while missing:
        remaining = list(missing)
        best, _ = max((candidate() for _ in range(_CANDIDATES)), key=lambda pair: pair[1])
        for (first, i), (second, j) in itertools.combinations(enumerate(best), 2):
            missing.pop((first, i, second, j), None)
        cases.append({name: factors[name][index] for name, index in zip(names, best, strict=True)})
    return cases
