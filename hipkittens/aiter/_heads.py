# SPDX-License-Identifier: MIT
"""Concatenating and splitting heads, by AITER's names."""

from __future__ import annotations

import torch

from .. import concat_heads, qkv_rotary, split_heads
from ._rope import rows_of


def fused_qk_cat(
    q1: torch.Tensor, q2: torch.Tensor, k1: torch.Tensor, k2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q1, q2) and (k1, k2) concatenated along the last dimension; q and k may have different heads and features."""
    return concat_heads(q1, q2, k1, k2)


def split_qkv(
    qkv: torch.Tensor, q_size: int, kv_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first q_size columns of qkv, the next kv_size and the last kv_size, each dense."""
    return split_heads(qkv, q_size, kv_size)


def fused_qkv_split_qk_rope(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    qh: int,
    kvh: int,
    head_dim: int,
    is_neox: bool = True,
    offsets: torch.Tensor | None = None,
    reuse_freqs_front_part: bool = True,
    nope_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v [tokens, heads, head_dim] of qkv, with q and k rotated. Any number of features may be rotated, and qh is arbitrary.

    The row of a token is positions + offsets; without positions, its index + offsets. AITER ignores offsets in that case.
    """
    if qkv.shape[-1] != (qh + 2 * kvh) * head_dim:
        raise ValueError(
            f"hipkittens.aiter.fused_qkv_split_qk_rope: qkv has {qkv.shape[-1]} columns; {qh} and twice {kvh} heads of {head_dim} "
            f"features have {(qh + 2 * kvh) * head_dim}"
        )
    cos, sin = (rows_of("fused_qkv_split_qk_rope", table) for table in (cos, sin))
    return qkv_rotary(qkv, cos, sin, qh, kvh, interleaved=not is_neox, positions=positions, offsets=offsets,
                      nope_first=nope_first, full_tables=not reuse_freqs_front_part)  # fmt: skip
