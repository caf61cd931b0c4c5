# SPDX-License-Identifier: MIT
"""Names of the activations in AITER's GEMMs."""

from __future__ import annotations

# silu_exp2 is silu by a base-2 exponential, by which these kernels compute every exponential.
_OURS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "silu": "silu", "silu_exp2": "silu", "relu": "relu"}


def product_activation(function: str, activation: str | None) -> str | None:
    """The name in hipkittens.linear and gated_linear. ValueError for a name that AITER does not have."""
    if activation is None:
        return None
    if activation not in _OURS:
        allowed = ", ".join(map(repr, _OURS))
        raise ValueError(
            f"hipkittens.aiter.{function}: activation is {activation!r}; allowed: None, {allowed}"
        )
    return _OURS[activation]
