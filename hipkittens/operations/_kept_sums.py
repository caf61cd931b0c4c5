# SPDX-License-Identifier: MIT
"""Derivatives of what is taken of a product's sums in its launch, by the sums that the launch kept."""

from __future__ import annotations

import torch

from .._call import call


def kept(sums: torch.Tensor) -> torch.Tensor:
    """RuntimeError unless the operator was asked for them, as functions do where a gradient is recorded."""
    if sums.dim() == 1:
        raise RuntimeError(
            "hipkittens: an operator of a linear layer with an activation was called with keep_sums=False and is differentiated; "
            "pass True, or call hipkittens.linear, hipkittens.gated_linear or hipkittens.moe"
        )
    return sums


def gradient_of_gates(grad, sums, activation, interleaved, alpha, limit) -> torch.Tensor:
    """Of sums, n gates and then n partners in a row; interleaved: in the order in which the weight has them."""
    sums = kept(sums)
    of_sums, _ = call(
        "gated_activation_backward", grad.to(sums.dtype), sums, None, None, activation, alpha, limit
    )
    return torch.stack(of_sums.chunk(2, -1), -1).flatten(-2) if interleaved else of_sums
