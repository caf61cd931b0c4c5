# SPDX-License-Identifier: MIT
"""Causal convolutions by AITER's names, with vLLM's states: the first width - 1 columns are used."""

from __future__ import annotations

import torch

from .. import convolution
from ._results import refuse


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor | None,
    query_start_loc: torch.Tensor,
    seq_lens_cpu: list[int],
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int = -1,
    validate_data: bool = False,
) -> torch.Tensor:
    """`hipkittens.causal_conv1d` of packed sequences (channels, times). seq_lens_cpu only chooses AITER's grid, and has no effect;
    arguments are always validated. Results of a sequence at pad_slot_id are 0; AITER leaves them unspecified.
    """
    states = None if conv_states is None else conv_states[..., : weight.shape[1] - 1]
    return convolution.causal_conv1d(x, weight, bias, activation=_activation(activation), query_start_loc=query_start_loc,
                                     conv_states=states, cache_indices=cache_indices, has_initial_state=has_initial_state,
                                     pad_slot_id=pad_slot_id)  # fmt: skip


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = None,
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    intermediate_conv_window: torch.Tensor | None = None,
    pad_slot_id: int = -1,
    metadata: None = None,
    validate_data: bool = False,
) -> torch.Tensor:
    """`hipkittens.causal_conv1d_update`, in place: x is written and returned. Rows at pad_slot_id are unchanged.

    With cache_seqlens the state's columns are a ring buffer, as in AITER's HIP kernel. Arguments are always validated.
    """
    name = "causal_conv1d_update"
    if intermediate_conv_window is not None:
        refuse(name, "intermediate_conv_window", "given", "leave it out, and keep conv_state of each step")
    if metadata is not None:
        refuse(name, "metadata", "given", "leave it out")
    ring = cache_seqlens is not None or num_accepted_tokens is not None
    state = conv_state if ring else conv_state[..., : weight.shape[1] - 1]
    y = convolution.causal_conv1d_update(x, state, weight, bias, _activation(activation), cache_seqlens=cache_seqlens,
                                         conv_state_indices=conv_state_indices, num_accepted_tokens=num_accepted_tokens,
                                         pad_slot_id=pad_slot_id)  # fmt: skip
    if conv_state_indices is not None:
        padded = (conv_state_indices == pad_slot_id).view(-1, *[1] * (x.dim() - 1))
        y = torch.where(padded, x, y)
    return x.copy_(y)


def causal_conv1d_fn_split_qkv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens_cpu: list[int],
    k_dim: int,
    v_dim: int,
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`causal_conv1d_fn` with its result split in three: q and k (tokens, k_dim) and v (tokens, v_dim), dense; in one launch if the
    channels of x are contiguous in memory, as they are after a projection, and with one more copy if its times are.
    """
    q, k, v = convolution.causal_conv1d(
        x, weight, bias, activation=_activation(activation), query_start_loc=query_start_loc,
        conv_states=conv_states[..., : weight.shape[1] - 1], cache_indices=cache_indices, has_initial_state=has_initial_state,
        pad_slot_id=pad_slot_id, split=(k_dim, k_dim, v_dim),
    )  # fmt: skip
    return q.t().contiguous(), k.t().contiguous(), v.t().contiguous()


def causal_conv1d_update_split_qkv(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    key_dim: int,
    value_dim: int,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = "silu",
    conv_state_indices: torch.Tensor | None = None,
    pad_slot_id: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`hipkittens.causal_conv1d_update` of x (batch, channels(, times)) with its result split in three, of key_dim, key_dim and value_dim
    channels; x is unchanged. Rows at pad_slot_id are 0; AITER leaves them unspecified.
    """
    q, k, v = convolution.causal_conv1d_update(
        x, conv_state[..., : weight.shape[1] - 1], weight, bias, _activation(activation), conv_state_indices=conv_state_indices,
        pad_slot_id=pad_slot_id, split=(key_dim, key_dim, value_dim),
    )  # fmt: skip
    return q.contiguous(), k.contiguous(), v.contiguous()


def _activation(activation):
    if isinstance(activation, bool):
        return "silu" if activation else None
    return "silu" if activation == "swish" else activation
