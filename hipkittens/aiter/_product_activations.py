# SPDX-License-Identifier: MIT
"""The activations of AITER's products by their names there."""

from __future__ import annotations

# silu_exp2 is silu by an exponential of base 2, which is how every exponential of these kernels is computed.
_OURS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "silu": "silu", "silu_exp2": "silu", "relu": "relu"}


def product_activation(function: str, activation: str | None) -> str | None:
    """What hipkittens.linear and gated_linear call it. ValueError for a name that AITER has not."""
    if activation is None:
        return None
    if activation not in _OURS:
        allowed = ", ".join(map(repr, _OURS))
        raise ValueError(
            f"hipkittens.aiter.{function}: activation is {activation!r}; allowed: None, {allowed}"
        )
    return _OURS[activation]
