# SPDX-License-Identifier: MIT
"""The record of latent attention to a paged cache; the functions are in hipkittens/latent_attention.py and
hipkittens/sparse_latent_attention.py.
"""

from __future__ import annotations

import torch

from ..latent_attention import LATENT, ROTARY, attention_mla
from ..sparse_latent_attention import attention_mla_sparse
from ._record import Checks, Function, Operation, Operator, no_derivative
from ._sharding import given, replicated


def _fake(q, *_rest):
    return q.new_empty((*q.shape[:2], LATENT)), _fake_into(q, q)


def _fake_into(_out, q, *_rest):
    return q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _sharding(q, kv_cache, table, starts, lengths, ends, sinks, kv_scale, *options):
    """By heads, which share the cache."""
    from torch.distributed.tensor import Replicate, Shard

    arguments = (q, kv_cache, table, starts, lengths, ends, sinks, kv_scale, *options)
    everybody = Replicate()
    inputs = [Shard(1), everybody, everybody, given(starts, everybody), everybody, given(ends, everybody)]
    inputs += [given(sinks, Shard(0)), given(kv_scale, everybody), *[None] * len(options)]
    return [replicated(arguments, 2), ([Shard(1), Shard(0)], inputs)]


def _checks() -> Checks:
    from ._attention_mla_checks import CHECKS

    return CHECKS


def _arguments(tensor, dtype):
    """Two sequences of 20 and 7 keys in pages of 16."""
    integers = tensor(1, dtype=torch.int32)
    return (
        tensor(2, 4, LATENT + ROTARY, dtype=dtype),
        tensor(4, 16, LATENT + ROTARY, dtype=dtype),
        integers.new_tensor([[2, 0], [3, 1]]),
        integers.new_tensor([20, 7]),
    )


def _sparse_arguments(tensor, dtype):
    """Two tokens, one of which has two keys."""
    integers = tensor(1, dtype=torch.int32)
    return (
        tensor(2, 4, LATENT + ROTARY, dtype=dtype),
        tensor(4, 16, LATENT + ROTARY, dtype=dtype),
        integers.new_tensor([[40, 3, 17, 60], [-1, 5, -1, 63]]),
    )


OPERATION = Operation(
    name="attention_mla",
    folder="paged_attention",
    kinds=("latent", "latent_shared"),
    functions=(
        Function(attention_mla, _arguments, {"scale": 192**-0.5}),
        Function(attention_mla_sparse, _sparse_arguments, {"scale": 192**-0.5}),
    ),
    operators=(
        Operator(
            "attention_mla",
            _fake,
            no_derivative("attention_mla", "hipkittens.attention_varlen"),
            sharding=_sharding,
            first_option=8,
        ),
        Operator("attention_mla_into", _fake_into, first_option=9),
    ),
    checks=_checks,
    order=5,
)
