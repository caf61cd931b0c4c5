# SPDX-License-Identifier: MIT
"""FLOP formulas of torch.ops.hipkittens for FlopCounterMode. Imported together with torch.utils.flop_counter, not earlier."""

from __future__ import annotations

from torch.utils.flop_counter import register_flop_formula

from . import _namespace, operations

for _operation in operations.every():
    for _operator in _operation.operators:
        if _operator.flops is not None:
            _packet = getattr(_namespace.OPERATORS, _operator.name)
            register_flop_formula(_packet, get_raw=_operator.flops_of_tensors)(_operator.flops)
