# SPDX-License-Identifier: MIT
"""The record of attention to a paged cache; the function is in hipkittens/paged_attention.py."""

from __future__ import annotations

import torch

from ..cache import LAYOUTS
from ..paged_attention import attention_paged
from ._record import Checks, Function, Operation, Operator, no_derivative
from ._sharding import given, is_tensor, replicated

_NO_DERIVATIVE = no_derivative("attention_paged", "hipkittens.attention_varlen")


def _fake(q, *_rest):
    return q.new_empty(q.shape), _fake_into(q, q)


def _fake_into(_out, q, *_rest):
    return q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _sharding(*arguments):
    """By key heads, with the query heads of their groups."""
    from torch.distributed.tensor import Replicate, Shard

    _q, k_cache, _v, _table, starts, _lengths, ends, slopes, sinks, k_scale, v_scale, plan, _most, layout = (
        arguments[:14]
    )
    found = [replicated(arguments, 2)]
    axis = 2 if LAYOUTS[layout] == "nhd" else 1
    # Heads of query and key keep their ratio only if every rank gets the same number.
    if is_tensor(k_cache) and k_cache.shape[axis] % k_cache.mesh.size() == 0:
        everybody = Replicate()
        inputs = [Shard(1), Shard(axis), Shard(axis), everybody, given(starts, everybody), everybody]
        inputs += [given(ends, everybody), None if slopes is None else Shard(len(slopes.shape) - 1)]
        inputs += [given(sinks, Shard(0)), *(_scale_sharding(scale) for scale in (k_scale, v_scale))]
        inputs += [given(plan, everybody)]
        found.append(([Shard(1), Shard(0)], [*inputs, *[None] * (len(arguments) - len(inputs))]))
    return found


def _scale_sharding(scale):
    from torch.distributed.tensor import Replicate, Shard

    if not is_tensor(scale):
        return None
    if scale.shape.numel() == 1:
        return Replicate()
    return Shard(1 if len(scale.shape) == 3 else len(scale.shape) - 1)


def _checks() -> Checks:
    from ._attention_paged_checks import CHECKS

    return CHECKS


def _arguments(tensor, dtype):
    """Two sequences of 20 and 7 keys in pages of 16."""
    integers = tensor(1, dtype=torch.int32)
    caches = [tensor(4, 16, 2, 64, dtype=dtype) for _ in range(2)]
    return (
        tensor(2, 4, 64, dtype=dtype),
        *caches,
        integers.new_tensor([[2, 0], [3, 1]]),
        integers.new_tensor([20, 7]),
    )


OPERATION = Operation(
    name="attention_paged",
    folder="paged_attention",
    kinds=("forward", "combine"),
    functions=(Function(attention_paged, _arguments),),
    operators=(
        Operator("attention_paged", _fake, _NO_DERIVATIVE, sharding=_sharding, first_option=12),
        Operator("attention_paged_into", _fake_into, first_option=13),
    ),
    checks=_checks,
    order=3,
)
