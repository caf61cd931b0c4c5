# SPDX-License-Identifier: MIT
"""The record of layer norm; the function is in hipkittens/norm.py."""

from __future__ import annotations

from ..norm import layer_norm
from ._norm import BACKWARD, FUSED, layer_norm_backward, layer_norm_fake, layer_norm_setup, sharding
from ._record import Checks, Function, Operation, Operator


def _checks() -> Checks:
    from ._norm_checks import LAYER_NORM

    return LAYER_NORM


OPERATION = Operation(
    name="layer_norm",
    folder="norm",
    functions=(
        Function(
            layer_norm, lambda tensor, dtype: (tensor(1, 32, 4, 64, dtype=dtype), tensor(64, dtype=dtype))
        ),
    ),
    operators=(
        Operator(
            "layer_norm",
            layer_norm_fake,
            layer_norm_backward,
            layer_norm_setup,
            sharding=sharding(4),
            first_option=4,
        ),
        BACKWARD,
        FUSED,
    ),
    checks=_checks,
    order=4,
)
