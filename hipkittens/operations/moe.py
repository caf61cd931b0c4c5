# SPDX-License-Identifier: MIT
"""The record of moe, which uses the sort by experts, gathering and combining of rows, grouped products and gates."""

from __future__ import annotations

import torch

from ..experts import moe
from ._record import Checks, Function, Operation


def _checks() -> Checks:
    from ._moe_checks import CHECKS

    return CHECKS


def _arguments(tensor, dtype):
    ids = tensor(8, 2, dtype=torch.int32)
    return (
        tensor(8, 32, dtype=dtype),
        tensor(4, 48, 32, dtype=dtype),
        tensor(4, 32, 24, dtype=dtype),
        tensor(8, 2, dtype=torch.float32),
        ids.new_tensor([[token % 4, (token + 1) % 4] for token in range(8)]),
    )


OPERATION = Operation(
    name="moe",
    folder="gemm",
    functions=(Function(moe, _arguments),),
    operators=(),
    checks=_checks,
    uses=(
        "activation",
        "expert_rows",
        "expert_sort",
        "gated_activation",
        "gated_activation_quantize",
        "grouped_matmul",
        "quantize",
    ),
)
