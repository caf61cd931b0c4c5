# SPDX-License-Identifier: MIT
"""Causal depthwise 1-D convolutions over time, as in state space models and gated delta rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import overload

import torch
import torch.nn.functional as F

from . import _autocast, _backend
from ._arguments import check_dtype_and_device, check_tensor, check_whole_number
from ._call import call

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDTHS = (2, 3, 4)  # smallest_width .. largest_width of csrc/kernels/conv/kinds.h
ACTIVATIONS = (None, "silu")
_INDICES = (torch.int32, torch.int64)


@overload
def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    query_start_loc: torch.Tensor | None = None,
    conv_states: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    pad_slot_id: int = -1,
    split: None = None,
) -> torch.Tensor: ...


@overload
def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    query_start_loc: torch.Tensor | None = None,
    conv_states: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    pad_slot_id: int = -1,
    split: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    query_start_loc: torch.Tensor | None = None,
    conv_states: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    pad_slot_id: int = -1,
    split: Sequence[int] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Causal depthwise 1-D convolution with an optional fused activation, over whole, packed or continued sequences.

    Computes act(bias[c] + sum over j of weight[c, j] * x[c, t - width + 1 + j]).

    - `x`: (batch, channels, times) or (channels, times), bfloat16, float16 or float32. Either times or channels may be contiguous in
      memory, without a copy; the result has the same layout.
    - `weight`, `bias`: (channels, width), width 2, 3 or 4, and (channels), in x's dtype. Sums are float32, starting from bias in the order
      of j, and rounded once, after the activation.
    - `activation`: None or "silu".
    - `query_start_loc`: int32 or int64, (sequences + 1). x is then (channels, times) with packed sequences that begin there; the last
      element is the end of the last one, and the result past it is 0.
    - `conv_states`: (slots, channels, width - 1), any strides, in x's dtype: the inputs before each sequence, where has_initial_state is
      True, and zeros elsewhere. It is then updated in place with the last width - 1 inputs, which for a shorter sequence include previous
      ones. No gradients with it, and no two sequences may share a slot.
    - `cache_indices`: int32 or int64, the slot of each sequence; by default its index. A sequence at `pad_slot_id`, or at a slot that does
      not exist, gives 0 and changes no state.
    - `has_initial_state`: bool, one for each sequence; by default False for all.
    - `split`: three numbers of channels that add up to all, such as those of queries, keys and values. The result is then three tensors,
      each as dense as the single one would be, from the same launch.

    x, weight and bias have gradients. Under torch.autocast they are in its dtype. Raises TypeError or ValueError, before anything is
    launched, for arguments that no kernel supports.
    """
    where = "hipkittens.causal_conv1d"
    check_tensor(where, "x", x)
    check_tensor(where, "weight", weight)
    x, weight, bias = _autocast.to_autocast_dtype(x, weight, bias)
    _check(where, x, weight, bias, activation, (2, 3), "(batch, channels, times) or (channels, times)")
    _check_split(where, split, weight.shape[0])
    width, packed = weight.shape[1], query_start_loc is not None
    whole = x if x.dim() == 3 else x.unsqueeze(0)
    sequences = whole.shape[0]
    if packed:
        if x.dim() != 2:
            raise ValueError(
                f"{where}: query_start_loc is given and x has shape {tuple(x.shape)}; packed sequences are (channels, times)"
            )
        query_start_loc = _indices(where, "query_start_loc", query_start_loc, x, None)
        sequences = query_start_loc.numel() - 1
    if conv_states is None:
        for name, value in (("cache_indices", cache_indices), ("has_initial_state", has_initial_state)):
            if value is not None:
                raise ValueError(f"{where}: {name} is given without conv_states; pass them, too")
    else:
        _check_states(where, "conv_states", conv_states, x, weight)
        if conv_states.shape[2] != width - 1:
            raise ValueError(
                f"{where}: conv_states has {conv_states.shape[2]} columns; it needs {width - 1}, one less than the width of weight. "
                "Pass a slice"
            )
        _check_no_gradient(where, "conv_states", conv_states, x, weight, bias)
        cache_indices = _slots(where, "cache_indices", cache_indices, conv_states, x, sequences, pad_slot_id)
        has_initial_state = _flags(where, has_initial_state, x, sequences)
    _backend.check_device(where, "x", x)
    if _backend.uses_torch():
        y = _parts(
            in_torch(
                whole,
                weight,
                bias,
                activation,
                query_start_loc,
                conv_states,
                cache_indices,
                has_initial_state,
            ),
            split,
        )
    elif conv_states is None:
        y = _by_rows("causal_conv1d", whole, (weight.contiguous(), bias, query_start_loc), activation, split)
    else:
        states = (conv_states, cache_indices, has_initial_state.view(torch.uint8), None, None)
        tensors = (weight.contiguous(), bias, query_start_loc, *states)
        y = _by_rows("causal_conv1d_states", whole, tensors, activation, split)
        torch.autograd.graph.increment_version(conv_states)
    return _each(y, lambda part: part if x.dim() == 3 else part.squeeze(0))


@overload
def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    pad_slot_id: int = -1,
    split: None = None,
) -> torch.Tensor: ...


@overload
def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    pad_slot_id: int = -1,
    split: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    pad_slot_id: int = -1,
    split: Sequence[int] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Continue `causal_conv1d` by one or more time steps with the inputs kept in conv_state, which is updated in place; for decoding.

    - `x`: (batch, channels) or (batch, channels, times).
    - `conv_state`: (slots, channels, columns), in x's dtype, any strides, with at least width - 1 columns. The last width - 1 columns are
      the previous inputs; afterwards the last columns are x, and the previous contents have been shifted to the front.
    - `weight`, `bias`, `activation`, `split`: as in `causal_conv1d`.
    - `conv_state_indices`: int32 or int64, (batch), the slot of each sequence; by default its index. A sequence at `pad_slot_id`, or at a
      slot that does not exist, gives 0 and changes no state. No two sequences may share a slot.
    - `cache_seqlens`: int32 or int64, (batch). The columns are a ring buffer: x is written from column cache_seqlens % columns on, and the
      previous inputs are in the columns before it.
    - `num_accepted_tokens`: int32 or int64, (batch), for speculative decoding: how many inputs of the last call, which had as many as this
      one, are accepted (1 to times). The sequence continues after them. conv_state has at least width - 2 + times columns, of which the
      first width - 2 + times are used.

    Not differentiable. Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.causal_conv1d_update"
    check_tensor(where, "x", x)
    check_tensor(where, "weight", weight)
    _check(
        where,
        x,
        weight,
        bias,
        activation,
        (2, 3),
        "(batch, channels) or (batch, channels, times)",
        update=True,
    )
    _check_split(where, split, weight.shape[0])
    whole = x if x.dim() == 3 else x.unsqueeze(-1)
    batch, _, times = whole.shape
    _check_states(where, "conv_state", conv_state, x, weight)
    width, columns = weight.shape[1], conv_state.shape[2]
    needed = width - 1 if num_accepted_tokens is None else width - 2 + times
    if columns < max(needed, width - 1):
        raise ValueError(
            f"{where}: conv_state has {columns} columns; it needs {needed} or more"
            + (
                f" for {times} speculative times"
                if num_accepted_tokens is not None
                else ", the width of weight less one"
            )
        )
    if cache_seqlens is not None and num_accepted_tokens is not None:
        raise ValueError(
            f"{where}: cache_seqlens and num_accepted_tokens are both given; a ring has no rejected tokens"
        )
    _check_no_gradient(where, "conv_state", conv_state, x, weight, bias)
    slots = _slots(where, "conv_state_indices", conv_state_indices, conv_state, x, batch, pad_slot_id)
    positions, accepted = (
        None if value is None else _indices(where, name, value, x, batch)
        for name, value in (("cache_seqlens", cache_seqlens), ("num_accepted_tokens", num_accepted_tokens))
    )
    _backend.check_device(where, "x", x)
    if _backend.uses_torch():
        y = in_torch(whole, weight, bias, activation, None, conv_state, slots, None, positions, accepted)
        y = _parts(y, split)
    else:
        tensors = (weight.contiguous(), bias, None, conv_state, slots, None, positions, accepted)
        y = _by_rows("causal_conv1d_states", whole, tensors, activation, split)
        torch.autograd.graph.increment_version(conv_state)
    return _each(y, lambda part: part if x.dim() == 3 else part.squeeze(-1))


def _by_rows(operator, x, tensors, activation, split):
    """Rows are contiguous: the times of a channel, or the channels of a time step."""
    channels_last = x.stride(1) == 1
    rows = x.transpose(1, 2) if channels_last else x
    options = (channels_last, activation == "silu")
    if split is None:
        y = call(operator, rows, *tensors, *options)
    else:
        y = call(f"{operator}_split", rows, *tensors, *options, *split[:2])
    return _each(y, lambda part: part.transpose(1, 2) if channels_last else part)


def _parts(y, split):
    return y if split is None else tuple(part.contiguous() for part in y.split(list(split), 1))


def _each(y, function):
    """Applies the function to a single result, or to each part of a split."""
    return function(y) if isinstance(y, torch.Tensor) else tuple(map(function, y))


def _check_split(where, split, channels) -> None:
    if split is None:
        return
    if not isinstance(split, (tuple, list)) or len(split) != 3:
        raise TypeError(f"{where}: split is {split!r}; it must be three numbers of channels")
    for count in split:
        check_whole_number(where, "an element of split", count)
    if min(split) < 0 or sum(split) != channels:
        raise ValueError(
            f"{where}: split is {tuple(split)}, {sum(split)} channels, and x has {channels}; they must be as many, none negative"
        )


def _check(where, x, weight, bias, activation, dimensions, shapes, update=False) -> None:
    check_dtype_and_device(where, "x", x, DTYPES, "x", x)
    if x.dim() not in dimensions:
        raise ValueError(f"{where}: x has shape {tuple(x.shape)}; it needs {shapes}")
    channels = x.shape[1] if update or x.dim() == 3 else x.shape[0]
    check_dtype_and_device(where, "weight", weight, (x.dtype,), "x", x)
    if weight.dim() != 2 or weight.shape[0] != channels:
        raise ValueError(
            f"{where}: weight has shape {tuple(weight.shape)}; it needs ({channels}, width), a row for each channel of x"
        )
    if weight.shape[1] not in WIDTHS:
        raise ValueError(
            f"{where}: weight has width {weight.shape[1]}; allowed: {', '.join(map(str, WIDTHS))}"
        )
    if bias is not None:
        check_tensor(where, "bias", bias)
        check_dtype_and_device(where, "bias", bias, (x.dtype,), "x", x)
        if bias.shape != (channels,):
            raise ValueError(f"{where}: bias has shape {tuple(bias.shape)}; it needs ({channels},)")
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{where}: activation is {activation!r}; allowed: {', '.join(map(repr, ACTIVATIONS))}"
        )


def _check_states(where, name, states, x, weight) -> None:
    check_tensor(where, name, states)
    check_dtype_and_device(where, name, states, (x.dtype,), "x", x)
    if states.dim() != 3 or states.shape[1] != weight.shape[0]:
        raise ValueError(
            f"{where}: {name} has shape {tuple(states.shape)}; it needs (slots, {weight.shape[0]}, columns), the channels of x"
        )


def _check_no_gradient(where, name, states, *tensors) -> None:
    if torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in (states, *tensors)
    ):
        raise NotImplementedError(
            f"{where.replace('.', ': ', 1)} has no derivative where it writes {name} in place; call it under torch.no_grad()"
        )


def _indices(where, name, value, x, count) -> torch.Tensor:
    check_tensor(where, name, value)
    check_dtype_and_device(where, name, value, _INDICES, "x", x)
    wanted = max(value.numel(), 1) if count is None else count
    if value.shape != (wanted,):
        raise ValueError(
            f"{where}: {name} has shape {tuple(value.shape)}; it needs "
            + ("(sequences + 1,)" if count is None else f"({count},), one for each sequence")
        )
    return value.to(torch.int32).contiguous()


def _slots(where, name, value, states, x, count, pad_slot_id) -> torch.Tensor | None:
    check_whole_number(where, "pad_slot_id", pad_slot_id)
    if value is None:
        if states.shape[0] < count:
            raise ValueError(
                f"{where}: there are {count} sequences and {states.shape[0]} slots of states; pass {name}, or more slots"
            )
        return None
    value = _indices(where, name, value, x, count)
    return torch.where(value == pad_slot_id, -1, value) if pad_slot_id >= 0 else value


def _flags(where, value, x, count) -> torch.Tensor:
    if value is None:
        return torch.zeros(count, dtype=torch.bool, device=x.device)
    check_tensor(where, "has_initial_state", value)
    check_dtype_and_device(where, "has_initial_state", value, (torch.bool,), "x", x)
    if value.shape != (count,):
        raise ValueError(
            f"{where}: has_initial_state has shape {tuple(value.shape)}; it needs ({count},), one for each sequence"
        )
    return value.contiguous()


def _convolved(x, weight, bias, activation):
    """The convolution of x (batch, channels, width - 1 + times)."""
    y = F.conv1d(x, weight.unsqueeze(1), bias, groups=weight.shape[0])
    return F.silu(y) if activation else y


def in_torch(
    x,
    weight,
    bias=None,
    activation=None,
    starts=None,
    states=None,
    slots=None,
    present=None,
    positions=None,
    accepted=None,
):
    """Both functions by PyTorch operations, for x (batch, channels, times); rounded once if x is narrower than float32."""
    before, wide = weight.shape[1] - 1, torch.promote_types(x.dtype, torch.float32)
    taps, offset = weight.to(wide), None if bias is None else bias.to(wide)
    if starts is None and states is None:
        return _convolved(F.pad(x.to(wide), (before, 0)), taps, offset, activation).to(x.dtype)
    if starts is None:
        sequences, end = list(x), x.shape[-1]
    else:
        ends = starts.tolist()
        sequences, end = [x[0, :, a:b] for a, b in pairwise(ends)], ends[-1]
    results = []
    for number, own in enumerate(sequences):
        slot = number if slots is None else int(slots[number])
        if states is not None and not 0 <= slot < len(states):
            results.append(own * 0)
            continue
        old = own.new_zeros(own.shape[0], before)
        if states is not None:
            old = states[slot].clone()
            if present is not None and not present[number]:
                old.zero_()
            old = _continued(states[slot], old, own, before, number, positions, accepted)
        history = torch.cat((old, own), -1)
        y = (
            own
            if not own.shape[-1]
            else _convolved(history.to(wide)[None], taps, offset, activation)[0].to(x.dtype)
        )
        results.append(y)
    if starts is None:
        return torch.stack(results) if results else x * 0
    return torch.cat([*results, x[0, :, end:] * 0], -1)[None]


def _continued(state, old, own, before, number, positions, accepted):
    """The previous inputs, from the columns `old`; `state` is updated for the next call."""
    times, columns = own.shape[-1], old.shape[-1]
    if positions is not None:
        position = int(positions[number])
        last = min(times, columns)
        state[:, [(position + t) % columns for t in range(times - last, times)]] = own[:, times - last :]
        return old[:, [(position - before + j) % columns for j in range(before)]]
    if accepted is not None:
        first, columns = min(max(int(accepted[number]), 1), times) - 1, before - 1 + times
        state[:, :columns] = torch.cat((old[:, first + 1 : first + before], own), -1)
        return old[:, first : first + before]
    state.copy_(torch.cat((old, own), -1)[:, times:])
    return old[:, columns - before :]
