# SPDX-License-Identifier: MIT
"""The record of an indexer's logits; the functions are in hipkittens/indexer_logits.py."""

from __future__ import annotations

import torch

from ..indexer_logits import mqa_logits, mqa_logits_paged
from ._record import Checks, Function, Operation, Operator, no_derivative
from ._sharding import given, replicated


def _fake(q, k, *_rest):
    return q.new_empty((q.shape[0], k.shape[0]), dtype=torch.float32)


def _fake_paged(q, _kv_cache, _weights, _context_lens, _block_table, max_context_len, _clean):
    return q.new_empty((q.shape[0], max_context_len), dtype=torch.float32)


def _sharding(q, k, k_scale, weights, start, end, clean):
    """By tokens; not by keys, since ranges count from the first key."""
    from torch.distributed.tensor import Replicate, Shard

    everybody, rows = Replicate(), Shard(0)
    inputs = [rows, everybody, given(k_scale, everybody), rows, rows, rows, None]
    return [replicated((q, k, k_scale, weights, start, end, clean), 1), ([rows], inputs)]


def _sharding_paged(*arguments):
    """Rows of q belong to several sequences: they cannot be sharded."""
    return [replicated(arguments, 1)]


def _checks() -> Checks:
    from ._mqa_logits_checks import CHECKS

    return CHECKS


def _arguments(tensor, dtype):
    integers = tensor(1, dtype=torch.int32)
    return (
        tensor(3, 4, 64, dtype=dtype),
        tensor(20, 64, dtype=dtype),
        tensor(20, dtype=torch.float32),
        tensor(3, 4, dtype=torch.float32),
        integers.new_tensor([0, 5, 20]),
        integers.new_tensor([20, 9, 20]),
    )


def _paged_arguments(tensor, dtype):
    """Two sequences of 20 and 7 keys in pages of 16."""
    integers = tensor(1, dtype=torch.int32)
    return (
        tensor(2, 1, 4, 64, dtype=dtype),
        tensor(4, 16, 64, dtype=dtype),
        tensor(2, 4, dtype=torch.float32),
        integers.new_tensor([20, 7]),
        integers.new_tensor([[2, 0], [3, 1]]),
        24,
    )


OPERATION = Operation(
    name="mqa_logits",
    folder="logits",
    functions=(Function(mqa_logits, _arguments), Function(mqa_logits_paged, _paged_arguments)),
    operators=(
        Operator(
            "mqa_logits",
            _fake,
            no_derivative("mqa_logits", "PyTorch's own operations"),
            sharding=_sharding,
            first_option=6,
        ),
        Operator(
            "mqa_logits_paged",
            _fake_paged,
            no_derivative("mqa_logits_paged", "PyTorch's own operations"),
            sharding=_sharding_paged,
            first_option=5,
        ),
    ),
    checks=_checks,
    order=25,
)
