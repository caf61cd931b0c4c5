# SPDX-License-Identifier: MIT
"""The record of linear_cross_entropy, which uses matrix products and cross_entropy's kernels."""

from __future__ import annotations

import torch

from ..loss import linear_cross_entropy
from ._record import Checks, Function, Operation
from .cross_entropy import classes_of


def _checks() -> Checks:
    from ._cross_entropy_checks import LINEAR_CROSS_ENTROPY

    return LINEAR_CROSS_ENTROPY


OPERATION = Operation(
    name="linear_cross_entropy",
    folder="gemm",
    functions=(
        Function(
            linear_cross_entropy,
            lambda tensor, dtype: (
                tensor(64, 32, dtype=dtype),
                tensor(128, 32, dtype=dtype),
                classes_of(tensor(64, dtype=torch.int64)),
            ),
        ),
    ),
    operators=(),
    checks=_checks,
    uses=("cross_entropy", "gemm"),
)
