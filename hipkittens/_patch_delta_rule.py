# SPDX-License-Identifier: MIT
"""Gated delta nets of Transformers: the four functions that each of their layers calls, or the names its module looks up.

Up to Transformers 5.14 a layer keeps the functions it was made with as attributes. A property of the layer's new class stands before
an attribute, so that the layer itself does not change.
"""

from __future__ import annotations

from typing import Any

import torch

from . import fla
from ._function_globals import names_in
from ._supported import supported
from .convolution import causal_conv1d, causal_conv1d_update

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


def members(original: type) -> dict[str, Any]:
    # Assigning is ignored: copies and checkpoints bring the original functions with them.
    return {
        name: property(lambda self, function=function: function, lambda self, value: None)
        for name, function in _FUNCTIONS.items()
    }


def looks_like_a_gated_delta_net(module: torch.nn.Module) -> bool:
    attributes = vars(module)
    return all(name in attributes for name in _NAMES) and "A_log" in module._parameters


def understand(module: torch.nn.Module) -> tuple | str:
    """The rule for `replacement_class`, or why there is none."""
    used = names_in(type(module).forward)
    missing = [name for name in _NAMES if name not in used]
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
