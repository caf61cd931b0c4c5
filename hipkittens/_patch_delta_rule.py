# SPDX-License-Identifier: MIT
"""Gated delta nets of Transformers: replaces the four functions that each of their layers calls, or the names its module looks up.

Up to Transformers 5.14 a layer stores the functions it was created with as attributes. A property of the layer's new class takes precedence
over an attribute, so the layer itself does not change. From 5.15 on its forward looks them up in its module, by the names of the
implementations in PyTorch, and the new class has a copy of it that finds others there.
"""

from __future__ import annotations

from typing import Any

import torch

from . import fla
from ._function_globals import global_of, names_in, with_globals
from ._supported import supported
from .convolution import causal_conv1d, causal_conv1d_update
from .delta_rule import gated_delta_rule

_NAMES = ("causal_conv1d_fn", "causal_conv1d_update", "chunk_gated_delta_rule", "recurrent_gated_delta_rule")


def _causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    if seq_idx is not None:
        raise NotImplementedError(
            "hipkittens.patch: the causal convolution of this layer is given seq_idx; it has no kernel; unpatch, or pass one sequence a row"
        )
    return causal_conv1d(x, weight, bias, activation=activation)


_FUNCTIONS = {
    "causal_conv1d_fn": _causal_conv1d_fn,
    "causal_conv1d_update": causal_conv1d_update,
    "chunk_gated_delta_rule": fla.chunk_gated_delta_rule,
    "recurrent_gated_delta_rule": fla.fused_recurrent_gated_delta_rule,
}


def _convolution_of_sequences(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    seq_idx: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **of_other_layers: Any,
) -> torch.Tensor:
    """The layer passes on its model's arguments; seq_idx repeats cu_seq_lens_q."""
    if cu_seq_lens_q is None:
        return _causal_conv1d_fn(hidden_states, weight, bias, seq_idx, activation)
    if cu_seq_lens_q.numel() == 2:  # One sequence, which a cache may have extended at the front.
        return causal_conv1d(hidden_states, weight, bias, activation=activation)
    if hidden_states.shape[0] != 1:
        raise ValueError(
            f"hipkittens.patch: cu_seq_lens_q is given and there are {hidden_states.shape[0]} rows of tokens; packed sequences are one row"
        )
    # A cache pads the front with zeros if there are fewer tokens than the convolution is wide.
    starts = cu_seq_lens_q + (hidden_states.shape[2] - cu_seq_lens_q[-1])
    return causal_conv1d(
        hidden_states[0], weight, bias, activation=activation, query_start_loc=starts
    ).unsqueeze(0)


def _rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    **of_other_layers: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    out, state = gated_delta_rule(
        query, key, value, g, beta, initial_state=initial_state, return_state=True,
        l2norm=use_qk_l2norm_in_kernel, cu_seqlens=cu_seqlens,
    )  # fmt: skip
    return out, state if output_final_state else None


_GLOBALS = {
    "causal_conv1d_fn": _convolution_of_sequences,
    "causal_conv1d_update": causal_conv1d_update,
    "torch_chunk_gated_delta_rule": _rule,
    "torch_recurrent_gated_delta_rule": _rule,
}


def members(original: type) -> dict[str, Any]:
    if _looks_up_names(original):
        return {"forward": with_globals(original.forward, _GLOBALS)}
    # Assignments are ignored: copies and checkpoints contain the original functions.
    return {
        name: property(lambda self, function=function: function, lambda self, value: None)
        for name, function in _FUNCTIONS.items()
    }


def _looks_up_names(kind: type) -> bool:
    return global_of(kind.forward, "torch_chunk_gated_delta_rule") is not None


def looks_like_a_gated_delta_net(module: torch.nn.Module) -> bool:
    attributes = vars(module)
    has_functions = all(name in attributes for name in _NAMES) or _looks_up_names(type(module))
    return has_functions and "A_log" in module._parameters


def understand(module: torch.nn.Module) -> tuple | str:
    """The rule for `replacement_class`, or why there is none."""
    kind = type(module)
    used = names_in(kind.forward)
    missing = [name for name in (_GLOBALS if _looks_up_names(kind) else _NAMES) if name not in used]
    if missing:
        return f"its forward does not call {', '.join(missing)}"
    return ("gated_delta_net",)


def refusal(module: torch.nn.Module, dtype: torch.dtype) -> str:
    """The error that its layer's sizes raise for tensors of this dtype, or ""."""
    weight = next(module.parameters())
    heads, key, value = module.A_log.shape[0], module.head_k_dim, module.head_v_dim

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=weight.device)

    query, gate = empty(1, 1, heads, key), empty(1, 1, heads)
    rule = supported("gated_delta_rule", query, query, empty(1, 1, heads, value), gate, gate)
    channels, _, width = module.conv1d.weight.shape
    convolution = supported(
        "causal_conv1d", empty(1, channels, 1), empty(channels, width), activation=module.activation
    )
    return rule.reason or convolution.reason
