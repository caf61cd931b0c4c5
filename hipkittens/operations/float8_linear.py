# SPDX-License-Identifier: MIT
"""The record of float8_linear, which uses quantize's kernels and scaled matrix products."""

from __future__ import annotations

from ..float8 import float8_linear
from ._record import Checks, Function, Operation


def _checks() -> Checks:
    from ._float8_linear_checks import CHECKS

    return CHECKS


OPERATION = Operation(
    name="float8_linear",
    folder="gemm",
    kinds=("scaled",),
    functions=(
        Function(
            float8_linear,
            lambda tensor, dtype: (tensor(32, 64, dtype=dtype), tensor(48, 64, dtype=dtype)),
        ),
    ),
    operators=(),
    checks=_checks,
    uses=("quantize", "scaled_gemm"),
)
