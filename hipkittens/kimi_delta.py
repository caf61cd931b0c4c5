# SPDX-License-Identifier: MIT
"""Kimi delta attention: gated delta rules with a separate decay for each key channel."""

from __future__ import annotations

from typing import Literal, overload

import torch
import torch.nn.functional as F

from . import _autocast, _backend
from ._arguments import check_gets_no_gradient, check_tensor, number
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
    checked_lower_bound,
)
from ._delta_rule_in_torch import gates, in_torch, steps_in_torch

_UNIT = 8  # elements of a tensor that kernels move at once


@overload
def kimi_delta_attention(
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
    lower_bound: float | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor: ...
@overload
def kimi_delta_attention(
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
    lower_bound: float | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def kimi_delta_attention(
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
    lower_bound: float | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...
@_backend.interruptible
def kimi_delta_attention(
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
    lower_bound: float | None = None,
    beta_logits: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Kimi delta attention (Kimi Linear): `gated_delta_rule` with a separate decay for each key channel.

    Returns the outputs, and with `return_state` also the states after the last tokens. Each value head has a state S of K x V. For each of
    its tokens

        S = diag(exp(g)) S;  S = S + k (beta (v - S^T k))^T;  o = scale S^T q

    - `g`: (batch, tokens, HV, K), the natural logarithms of the decays, not positive, in bfloat16, float16 or float32, converted to
      float32.
    - `q`, `k`, `v`, `beta`, `scale`, `initial_state`, `l2norm`, `beta_logits`, `cu_seqlens`, `state_layout`: as in `gated_delta_rule`.
    - `A_log`, `dt_bias`: (HV) and (HV, K). g is then the x of the decays' logarithms -exp(A_log) softplus(x + dt_bias).
    - `lower_bound`: below 0, with A_log and dt_bias: the logarithms are lower_bound sigmoid(exp(A_log) (x + dt_bias)).

    From 17 tokens on, counted over all packed sequences, chunks of 64 tokens are computed as matrix products. Fewer tokens, and float32
    with K above 128, are computed sequentially in float32. Either way states are float32 and results are rounded once; two runs give the
    same bytes, and packed sequences those of separate calls. In float16, states and inverses of the chunks' systems above 65504 overflow;
    keys that are unit vectors keep them small. Under torch.autocast q, k and v are in its dtype.

    Not differentiable. Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports, and ValueError
    for a tensor that requires a gradient.
    """
    where = "hipkittens.kimi_delta_attention"
    check_tensor(where, "q", q)
    q, k, v = _autocast.to_autocast_dtype(q, k, v)
    check_inputs(where, q, k, v, g, beta, channels=True)
    check_gate(where, g, A_log, dt_bias)
    bound = checked_lower_bound(where, lower_bound, A_log)
    check_options(
        where, return_state=return_state, l2norm=l2norm, beta_logits=beta_logits, state_layout=state_layout
    )
    (batch, _, heads, value), key = v.shape, k.shape[3]
    scale = key**-0.5 if scale is None else number(where, "scale", scale)
    starts = as_starts(where, cu_seqlens, q)
    sequences = batch if starts is None else starts.numel() - 1
    initial = as_initial_state(where, initial_state, q, (sequences, heads, key, value), state_layout)
    _check_get_no_gradient(
        where, q=q, k=k, v=v, g=g, beta=beta, A_log=A_log, dt_bias=dt_bias, initial_state=initial_state
    )
    _backend.check_device(where, "q", q)
    if _backend.uses_torch():
        g, beta = gates(g, beta, A_log, dt_bias, beta_logits, lower_bound=bound)
        out, state = in_torch(q, k, v, g, beta, scale, initial, l2norm, starts)
    else:
        more_keys, more_values = -key % _UNIT, -value % _UNIT
        if more_keys:
            q, k, g = (F.pad(tensor, (0, more_keys)) for tensor in (q, k, g))
            dt_bias = None if dt_bias is None else F.pad(dt_bias, (0, more_keys))
        if more_values:
            v = F.pad(v, (0, more_values))
        if initial is not None and (more_keys or more_values):
            initial = F.pad(initial, (0, more_values, 0, more_keys))
        out, state = call(
            "kimi_delta_attention", q, k, v, *as_gates(q, g, beta), *as_parameters(A_log, dt_bias), initial,
            starts, scale, bool(l2norm), bool(beta_logits), bound or 0.0,
        )  # fmt: skip
        out, state = out[..., :value], state[..., :key, :value]
    if not return_state:
        return out
    return out, state if state_layout == "kv" else state.transpose(-1, -2)


@_backend.interruptible
def kimi_delta_step(
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
    lower_bound: float | None = None,
    beta_logits: bool = False,
    allow_neg_eigval: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_layout: str = "kv",
) -> torch.Tensor:
    """Continue `kimi_delta_attention` by one or more tokens, with states that are updated in place; for decoding.

    Gates are computed in the kernel. q, k, v, g, beta, scale, l2norm, A_log, dt_bias, lower_bound and beta_logits are as in
    `kimi_delta_attention`; state, which is float32, state_indices, accepted, allow_neg_eigval, cu_seqlens and state_layout are as in
    `gated_delta_step`. Returns the outputs.

    Not differentiable. Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.kimi_delta_step"
    check_inputs(where, q, k, v, g, beta, channels=True)
    check_gate(where, g, A_log, dt_bias)
    bound = checked_lower_bound(where, lower_bound, A_log)
    check_options(
        where, l2norm=l2norm, beta_logits=beta_logits, allow_neg_eigval=allow_neg_eigval,
        state_layout=state_layout,
    )  # fmt: skip
    (batch, tokens, heads, value), key = v.shape, k.shape[3]
    scale = key**-0.5 if scale is None else number(where, "scale", scale)
    starts = as_starts(where, cu_seqlens, q)
    sequences = batch if starts is None else starts.numel() - 1
    check_state(where, state, q, heads, key, value, state_layout, STATE_DTYPES[:1])
    _check_get_no_gradient(where, q=q, k=k, v=v, g=g, beta=beta, A_log=A_log, dt_bias=dt_bias, state=state)
    slots, accepted = as_slots(
        where, state_indices, accepted, state, q, sequences, tokens if starts is None else None
    )
    _backend.check_device(where, "q", q)
    factor = 2.0 if allow_neg_eigval else 1.0
    if _backend.uses_torch():
        g, beta = gates(g, beta, A_log, dt_bias, beta_logits, factor, bound)
        return steps_in_torch(q, k, v, g, beta, state, slots, accepted, scale, l2norm, starts, state_layout)
    out = call(
        "kimi_delta_step", q, k, v, *as_gates(q, g, beta), *as_parameters(A_log, dt_bias), state, slots, accepted,
        starts, scale, factor, bool(l2norm), bool(beta_logits), state_layout == "vk", bound or 0.0,
    )  # fmt: skip
    torch.autograd.graph.increment_version(state)
    return out


def _check_get_no_gradient(where, **tensors) -> None:
    for name, tensor in tensors.items():
        check_gets_no_gradient(where, name, tensor)
