# SPDX-License-Identifier: MIT
"""The record of attention; the function is in hipkittens/attention.py."""

from __future__ import annotations

from ..attention import attention
from ._attention import KINDS, OPERATORS
from ._record import Checks, Function, Operation


def _checks() -> Checks:
    from ._attention_checks import CHECKS

    return CHECKS


OPERATION = Operation(
    name="attention",
    folder="attention",
    kinds=KINDS,
    functions=(
        Function(attention, lambda tensor, dtype: tuple(tensor(1, 32, 4, 64, dtype=dtype) for _ in range(3))),
    ),
    operators=OPERATORS,
    checks=_checks,
    order=1,
)
