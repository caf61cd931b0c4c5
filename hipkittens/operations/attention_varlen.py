# SPDX-License-Identifier: MIT
"""The record of attention over packed sequences; the function is in hipkittens/attention.py."""

from __future__ import annotations

import torch

from ..attention import attention_varlen
from ._attention import KINDS, VARLEN_OPERATORS
from ._record import Checks, Function, Operation


def _arguments(tensor, dtype):
    ends = tensor(2, dtype=torch.int32).new_tensor([0, 32])
    return *(tensor(32, 4, 64, dtype=dtype) for _ in range(3)), ends, ends, 32, 32


def _checks() -> Checks:
    from ._attention_checks import VARLEN

    return VARLEN


OPERATION = Operation(
    name="attention_varlen",
    folder="attention",
    kinds=KINDS,
    functions=(Function(attention_varlen, _arguments),),
    operators=VARLEN_OPERATORS,
    checks=_checks,
    order=2,
)
