# SPDX-License-Identifier: MIT
"""Derivatives of epilogues fused into a GEMM, from the accumulators that its launch stored."""

from __future__ import annotations

import torch

from .._call import call


def kept(sums: torch.Tensor) -> torch.Tensor:
    """RuntimeError unless the operator was asked to store them, as functions do if a gradient is recorded."""
    if sums.dim() == 1:
        raise RuntimeError(
            "hipkittens: an operator of a linear layer with an activation was called with keep_sums=False and is differentiated; "
            "pass True, or call hipkittens.linear, hipkittens.gated_linear or hipkittens.moe"
        )
    return sums


def gradient_of_gates(grad, sums, activation, interleaved, alpha, limit) -> torch.Tensor:
    """The gradient of accumulators, n gates followed by the n values they multiply in a row; interleaved: in the order of the weight."""
    sums = kept(sums)
    of_sums, _ = call(
        "gated_activation_backward", grad.to(sums.dtype), sums, None, None, activation, alpha, limit
    )
    return torch.stack(of_sums.chunk(2, -1), -1).flatten(-2) if interleaved else of_sums
