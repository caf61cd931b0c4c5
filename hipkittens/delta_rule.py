# SPDX-License-Identifier: MIT
"""Gated delta rules: linear attention with a decaying, self-correcting state, as in Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from typing import Literal, overload

import torch
import torch.nn.functional as F

from . import _autocast, _backend
from ._arguments import check_tensor, number
from ._call import call
from ._delta_rule_arguments import (
    STATE_DTYPES,
    as_gates,
    as_initial_state,
    as_parameters,
    as_slots,
    as_starts,
    check_gate,
    check_inputs,
    check_options,
    check_state,
)
from ._delta_rule_in_torch import gates, in_torch, steps_in_torch

LARGEST_KEY_WITH_GRADIENT = {
    torch.bfloat16: 256,
    torch.float16: 256,
    torch.float32: 128,
}  # for the rows of kind gradient
_UNIT = 8  # elements of q, k and v that are read at once


@overload
def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    return_state: Literal[False] = False,
    l2norm: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor: ...
@overload
def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    return_state: Literal[True],
    l2norm: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    return_state: bool,
    l2norm: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...
@_backend.interruptible
def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    return_state: bool = False,
    l2norm: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Gated delta rule (linear attention of Qwen3-Next and Qwen3.5) over whole sequences; returns outputs (batch, tokens, HV, V).

    Each value head has a state S of K x V. For each of its tokens

        S = exp(g) S;  S = S + k (beta (v - S^T k))^T;  o = scale S^T q

    - `q`, `k`, `v`: (batch, tokens, H, K) twice and (batch, tokens, HV, V), bfloat16, float16 or float32, in any layout with a contiguous
      last dimension. HV is a multiple of H, and value head i uses the query and key of head i // (HV / H). K is up to 256 (in float32 128
      if gradients are required).
    - `g`, `beta`: (batch, tokens, HV), any of these dtypes, converted to float32. g is the natural logarithm of the decay, not positive.
    - `scale`: K ** -0.5 by default.
    - `initial_state`: (sequences, HV, K, V), zeros by default.
    - `return_state`: also return the states after the last token, float32.
    - `state_layout`: "kv"; with "vk" initial and returned states are (sequences, HV, V, K).
    - `l2norm`: first divide q and k by the square root of 1e-6 + the sum of their squares.
    - `A_log`, `dt_bias`: (HV). g is then the x of the decay's logarithm -exp(A_log) softplus(x + dt_bias).
    - `beta_logits`: beta is the sigmoid of the argument.
    - `cu_seqlens`: int32 or int64, (sequences + 1), for packed sequences in a batch of one: the start of each, and the end of the last one.
      Tokens past it give 0. It is read on the device.

    From 17 tokens on, chunks of 64 tokens are computed as matrix products, in which float32 intermediates are represented as sums of two
    elements. Fewer tokens, and float32 with K above 128, are computed sequentially in float32. Either way states are float32 and results
    are rounded once; two runs give the same bytes, and packed sequences those of separate calls. In float16, states and inverses of the
    chunks' systems above 65504 overflow; keys that are unit vectors keep them small. Differentiable in all tensors but cu_seqlens. Under
    torch.autocast q, k and v are in its dtype.

    Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.gated_delta_rule"
    check_tensor(where, "q", q)
    q, k, v = _autocast.to_autocast_dtype(q, k, v)
    check_inputs(where, q, k, v, g, beta)
    check_gate(where, g, A_log, dt_bias)
    check_options(
        where, return_state=return_state, l2norm=l2norm, beta_logits=beta_logits, state_layout=state_layout
    )
    (batch, _, heads, value), key = v.shape, k.shape[3]
    scale = key**-0.5 if scale is None else number(where, "scale", scale)
    starts = as_starts(where, cu_seqlens, q)
    sequences = batch if starts is None else starts.numel() - 1
    tensors = (q, k, v, g, beta, A_log, dt_bias, initial_state)
    largest = LARGEST_KEY_WITH_GRADIENT[q.dtype]
    if key > largest and _asks_for_gradient(*tensors):
        wider = f", or pass q, k and v in {torch.bfloat16}" if q.dtype == torch.float32 else ""
        raise NotImplementedError(
            f"{where}: K is {key}, and derivatives in {q.dtype} have kernels of up to {largest}; call it under torch.no_grad(){wider}"
        )
    initial_state = as_initial_state(where, initial_state, q, (sequences, heads, key, value), state_layout)
    _backend.check_device(where, "q", q)
    g, beta = gates(g, beta, A_log, dt_bias, beta_logits)
    if _backend.uses_torch():
        out, state = in_torch(q, k, v, g, beta, scale, initial_state, l2norm, starts)
    else:
        more_keys, more_values = -key % _UNIT, -value % _UNIT
        if more_keys:
            q, k = (F.pad(tensor, (0, more_keys)) for tensor in (q, k))
        if more_values:
            v = F.pad(v, (0, more_values))
        if initial_state is not None and (more_keys or more_values):
            initial_state = F.pad(initial_state, (0, more_values, 0, more_keys))
        out, state = call("gated_delta_rule", q, k, v, g, beta, initial_state, starts, scale, bool(l2norm))
        out, state = out[..., :value], state[..., :key, :value]
    if not return_state:
        return out
    return out, state if state_layout == "kv" else state.transpose(-1, -2)


@_backend.interruptible
def gated_delta_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    *,
    state_indices: torch.Tensor | None = None,
    accepted: torch.Tensor | None = None,
    scale: float | None = None,
    l2norm: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    beta_logits: bool = False,
    allow_neg_eigval: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor:
    """Continue `gated_delta_rule` by one or more tokens, with states that are updated in place; for decoding.

    Gates are computed in the kernel. Returns the outputs.

    - `q`, `k`, `v`, `g`, `beta`, `scale`, `l2norm`, `A_log`, `dt_bias`, `beta_logits`: as in `gated_delta_rule`.
    - `state`: (slots, HV, K, V), or (slots, HV, V, K) if `state_layout` is "vk", in float32 or, with bfloat16 inputs, bfloat16 (rounded to
      nearest even after the last token). Its last dimension is contiguous, and that dimension and the other strides are multiples of 4.
    - `state_indices`: int32 or int64, (sequences), the slot of each sequence, by default its index; or (sequences, n), n slots, of which
      slot t receives the state after token t. For slots that do not exist, such as -1, the outputs are 0 and no state changes. No two
      sequences may share a slot.
    - `accepted`: int32 or int64, (sequences), with n slots, for speculative decoding: how many tokens of the last call are accepted, at
      least 1. The sequence continues from the state of the last accepted one.
    - `allow_neg_eigval`: double beta.
    - `cu_seqlens`: for packed sequences in a batch of one; a sequence without tokens keeps its state.

    Not differentiable. Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.gated_delta_step"
    check_inputs(where, q, k, v, g, beta)
    check_gate(where, g, A_log, dt_bias)
    check_options(
        where, l2norm=l2norm, beta_logits=beta_logits, allow_neg_eigval=allow_neg_eigval,
        state_layout=state_layout,
    )  # fmt: skip
    (batch, tokens, heads, value), key = v.shape, k.shape[3]
    scale = key**-0.5 if scale is None else number(where, "scale", scale)
    starts = as_starts(where, cu_seqlens, q)
    sequences = batch if starts is None else starts.numel() - 1
    dtypes = STATE_DTYPES if q.dtype == torch.bfloat16 else STATE_DTYPES[:1]
    check_state(where, state, q, heads, key, value, state_layout, dtypes)
    tensors = (q, k, v, g, beta, state, A_log, dt_bias)
    if _asks_for_gradient(*tensors):
        raise NotImplementedError(
            "hipkittens: gated_delta_step has no derivative, since it writes its state in place; call it under torch.no_grad(), or "
            "gated_delta_rule"
        )
    slots, accepted = as_slots(
        where, state_indices, accepted, state, q, sequences, tokens if starts is None else None
    )
    _backend.check_device(where, "q", q)
    factor = 2.0 if allow_neg_eigval else 1.0
    if _backend.uses_torch():
        g, beta = gates(g, beta, A_log, dt_bias, beta_logits, factor)
        return steps_in_torch(q, k, v, g, beta, state, slots, accepted, scale, l2norm, starts, state_layout)
    out = call(
        "gated_delta_step", q, k, v, *as_gates(q, g, beta), *as_parameters(A_log, dt_bias), state, slots, accepted,
        starts, scale, factor, bool(l2norm), bool(beta_logits), state_layout == "vk",
    )  # fmt: skip
    torch.autograd.graph.increment_version(state)
    return out


def _asks_for_gradient(*tensors) -> bool:
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)
