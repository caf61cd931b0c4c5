# SPDX-License-Identifier: MIT
"""The record of RMS norm; the function is in hipkittens/norm.py."""

from __future__ import annotations

from ..norm import rms_norm
from ._norm import rms_norm_backward, rms_norm_fake, rms_norm_setup, sharding
from ._record import Checks, Function, Operation, Operator


def _checks() -> Checks:
    from ._norm_checks import RMS_NORM

    return RMS_NORM


OPERATION = Operation(
    name="rms_norm",
    folder="norm",
    functions=(
        Function(
            rms_norm, lambda tensor, dtype: (tensor(1, 32, 4, 64, dtype=dtype), tensor(64, dtype=dtype))
        ),
    ),
    operators=(
        Operator(
            "rms_norm", rms_norm_fake, rms_norm_backward, rms_norm_setup, sharding=sharding(3), first_option=3
        ),
    ),
    checks=_checks,
    order=5,
)
