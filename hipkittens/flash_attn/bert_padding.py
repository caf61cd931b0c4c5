# SPDX-License-Identifier: MIT
"""flash_attn.bert_padding: conversion between padded batches and packed tokens. Plain PyTorch, differentiable."""

from __future__ import annotations

import torch


def index_first_axis(input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Select the rows `indices` of the first axis."""
    return input.index_select(0, indices)


def index_put_first_axis(values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int) -> torch.Tensor:
    """Zeros with first_axis_dim rows, with values at the rows `indices`, which are all different."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices, values)


def unpad_input(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Pack the tokens of hidden_states (batch, tokens, ...) where attention_mask (batch, tokens) is 1.

    unused_mask marks tokens that are packed as well, but do not count as used. Returns the packed tokens, their indices in the flattened
    batch, cu_seqlens (int32, batch + 1), the longest sequence (an int, read from the device) and the number of used tokens of each sequence
    (int32).
    """
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = int(lengths.max()) if lengths.numel() else 0
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest, used


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """Scatter packed tokens to their positions in (batch, seqlen, ...), zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
