# SPDX-License-Identifier: MIT
"""The record of writes to caches; the functions are in hipkittens/cache.py, and the one that rotates q and k first in latent_rotary.py."""

from __future__ import annotations

import torch

from ..cache import cache_write, indexer_cache_write, mla_cache_write
from ..latent_rotary import rotary_cache_write
from ._record import Checks, Function, Operation, Operator


def _fake(*_arguments):
    return None


def _rotary_fake(q, k, *_arguments):
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _checks() -> Checks:
    from ._cache_write_checks import CHECKS

    return CHECKS


def _arguments(tensor, dtype):
    rows, cache = tensor(8, 4, 64, dtype=dtype), [tensor(2, 16, 4, 64, dtype=dtype) for _ in range(2)]
    return rows, rows, *cache, tensor(8, dtype=torch.int64)


def _mla_arguments(tensor, dtype):
    slots = tensor(8, dtype=torch.int64)
    return tensor(8, 512, dtype=dtype), tensor(8, 64, dtype=dtype), tensor(2, 16, 576, dtype=dtype), slots


def _indexer_arguments(tensor, dtype):
    return tensor(8, 128, dtype=dtype), tensor(2, 16, 132, dtype=torch.uint8), tensor(8, dtype=torch.int64)


def _rotary_arguments(tensor, dtype):
    table, slots = tensor(8, 32, dtype=torch.float32), tensor(8, dtype=torch.int64)
    q, k = tensor(8, 4, 64, dtype=dtype), tensor(8, 2, 64, dtype=dtype)
    return q, k, k, table, table, *(tensor(2, 16, 2, 64, dtype=dtype) for _ in range(2)), slots


OPERATION = Operation(
    name="cache_write",
    folder="cache",
    functions=(
        Function(cache_write, _arguments),
        Function(mla_cache_write, _mla_arguments),
        Function(indexer_cache_write, _indexer_arguments),
        Function(rotary_cache_write, _rotary_arguments),
    ),
    operators=(
        Operator("cache_write", _fake, first_option=7),
        Operator("mla_cache_write", _fake, first_option=5),
        Operator("rotary_cache_write", _rotary_fake),
        Operator("cache_write_scaled", _fake, first_option=7),
        Operator("cache_write_shared_scale", _fake, first_option=7),
        Operator("indexer_cache_write", _fake, first_option=3),
    ),
    checks=_checks,
    order=24,
    uses=("rotary",),
)
