# SPDX-License-Identifier: MIT
"""The record of attention of quantized operands; the functions are in hipkittens/quantized_attention.py."""

from __future__ import annotations

import torch

from ..quantization import dtype_of
from ..quantized_attention import attention_of_codes, attention_quantized
from ._attention import heads_divide
from ._record import Checks, Function, Operation, Operator, no_derivative
from ._sharding import replicated


def _fake(q, k, v, *rest):
    torch._check(
        q.dim() == 4 and k.dim() == 4 and v.dim() == 4,
        lambda: f"hipkittens::attention_quantized: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )
    batch, rows, heads, _ = q.shape
    out = q.new_empty((batch, rows, heads, v.shape[2]), dtype=rest[-1])
    return out, q.new_empty((batch, heads, rows), dtype=torch.float32)


def _flops(q_shape, k_shape, v_shape, *_args, out_shape=None, **_kwargs) -> int:
    """Two GEMMs over all pairs of query and key: masks are not subtracted."""
    batch, rows, heads, size = q_shape
    return 2 * batch * heads * rows * k_shape[1] * (size + v_shape[2])


def _sharding(*arguments):
    """By batch, and by key heads with the query heads of their groups."""
    from torch.distributed.tensor import Shard

    options = [None] * (len(arguments) - 6)
    found = [replicated(arguments, 2), ([Shard(0), Shard(0)], [Shard(0)] * 6 + options)]
    if heads_divide(arguments[1], 2):
        rows, scales = [Shard(2), Shard(2), Shard(1)], [Shard(1)] * 3
        found.append(([Shard(2), Shard(1)], rows + scales + options))
    return found


def _arguments(tensor, dtype):
    return tuple(tensor(2, 32, 4, 64, dtype=dtype) for _ in range(3))


def _arguments_of_codes(tensor, dtype):
    """Arguments of one block, for a result of dtype."""
    codes = tensor(2, 32, 4, 64, dtype=torch.int8)
    values = tensor(2, 32, 4, 64, dtype=dtype_of("fp8", codes.device))
    scales = tensor(2, 4, 1, dtype=torch.float32)
    return codes, codes, values, scales, scales, tensor(2, 4, 64, dtype=torch.float32), dtype


def _checks() -> Checks:
    from ._attention_quantized_checks import CHECKS

    return CHECKS


OPERATION = Operation(
    name="attention_quantized",
    folder="attention",
    kinds=("quantized_forward",),
    functions=(Function(attention_quantized, _arguments), Function(attention_of_codes, _arguments_of_codes)),
    operators=(
        Operator(
            "attention_quantized",
            _fake,
            no_derivative("attention_quantized", "hipkittens.attention"),
            flops=_flops,
            sharding=_sharding,
            first_option=6,
        ),
    ),
    checks=_checks,
    order=5,
)
