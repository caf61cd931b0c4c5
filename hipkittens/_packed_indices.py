# SPDX-License-Identifier: MIT
"""The sequence, position and chunk of each token of packed sequences, from the starts of the sequences; any sequence may be empty.

The names are those of flash-linear-attention (fla.ops.utils.index). fla numbers sequences by their first tokens, so the numbers after an
empty sequence are one too low; here they follow cu_seqlens.
"""

from __future__ import annotations

import torch

from ._arguments import check_tensor, check_whole_number


def prepare_lens(cu_seqlens: torch.Tensor) -> torch.Tensor:
    """The lengths (sequences,) of sequences that start at cu_seqlens (sequences + 1,), int32 or int64, in its dtype."""
    check_tensor("hipkittens.fla.prepare_lens", "cu_seqlens", cu_seqlens)
    if cu_seqlens.dim() != 1 or not cu_seqlens.numel() or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"hipkittens.fla.prepare_lens: cu_seqlens is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}; it must be int32 or "
            "int64, (sequences + 1,)"
        )
    return cu_seqlens.diff()


def prepare_sequence_ids(cu_seqlens: torch.Tensor) -> torch.Tensor:
    """(tokens,): the index of each token's sequence."""
    return _parts(prepare_lens(cu_seqlens))[0]


def prepare_position_ids(cu_seqlens: torch.Tensor) -> torch.Tensor:
    """(tokens,): the position of each token in its sequence, from 0."""
    return _parts(prepare_lens(cu_seqlens))[1]


def prepare_token_indices(cu_seqlens: torch.Tensor) -> torch.Tensor:
    """(tokens, 2): the index of each token's sequence, and the token's position in it."""
    return torch.stack(_parts(prepare_lens(cu_seqlens)), 1)


def prepare_chunk_indices(cu_seqlens: torch.Tensor, chunk_size: int) -> torch.Tensor:
    """(chunks, 2): for each chunk of chunk_size tokens (fewer for the last one of a sequence), its sequence and its index there."""
    return torch.stack(_parts(_chunks("prepare_chunk_indices", cu_seqlens, chunk_size)), 1)


def prepare_chunk_offsets(cu_seqlens: torch.Tensor, chunk_size: int) -> torch.Tensor:
    """(sequences + 1,): the index of each sequence's first chunk among all chunks, and the total number of chunks."""
    counts = _chunks("prepare_chunk_offsets", cu_seqlens, chunk_size)
    return torch.cat((counts.new_zeros(1), counts)).cumsum(0, dtype=counts.dtype)


def _chunks(name: str, cu_seqlens: torch.Tensor, chunk_size: int) -> torch.Tensor:
    where = f"hipkittens.fla.{name}"
    check_whole_number(where, "chunk_size", chunk_size)
    if chunk_size < 1:
        raise ValueError(f"{where}: chunk_size is {chunk_size}; it must be at least 1")
    return (prepare_lens(cu_seqlens) + chunk_size - 1).div(chunk_size, rounding_mode="floor")


def _parts(lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For consecutive parts of the given lengths: the owner of each element, and its index within that owner."""
    owners = torch.arange(lengths.numel(), device=lengths.device).repeat_interleave(lengths)
    first = (lengths.cumsum(0) - lengths)[owners]
    places = torch.arange(owners.numel(), device=lengths.device) - first
    return owners.to(lengths.dtype), places.to(lengths.dtype)
