# SPDX-License-Identifier: MIT
"""Modifications of scaled attention scores before the softmax, other than masks: a softcap, ALiBi's bias, a sink."""

from __future__ import annotations

import math

import torch

from ._arguments import check_dtype_and_device, check_gets_no_gradient, check_tensor, number

SINK_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_score_terms(
    where: str,
    q: torch.Tensor,
    heads: int,
    sequences: int,
    sinks: torch.Tensor | None,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
) -> None:
    """Raises TypeError or ValueError for terms that no kernel supports with `heads` heads of q in so many sequences."""
    if alibi_slopes is not None:
        check_tensor(where, "alibi_slopes", alibi_slopes)
        check_dtype_and_device(where, "alibi_slopes", alibi_slopes, (torch.float32,), "q", q)
        check_gets_no_gradient(where, "alibi_slopes", alibi_slopes)
        if tuple(alibi_slopes.shape) not in ((heads,), (sequences, heads)):
            raise ValueError(
                f"{where}: alibi_slopes has shape {tuple(alibi_slopes.shape)}; it must be ({heads},) or ({sequences}, {heads})"
            )
    if sinks is not None:
        check_tensor(where, "sinks", sinks)
        check_dtype_and_device(where, "sinks", sinks, SINK_DTYPES, "q", q)
        if tuple(sinks.shape) != (heads,):
            raise ValueError(f"{where}: sinks has shape {tuple(sinks.shape)}; it must be ({heads},)")
    softcap = number(where, "softcap", softcap)
    if not 0 <= softcap < math.inf:
        raise ValueError(f"{where}: softcap is {softcap}; it must be finite and 0 (none) or more")


def with_terms(
    scores: torch.Tensor, distance: torch.Tensor, softcap: float, alibi_slopes: torch.Tensor | None
) -> torch.Tensor:
    """Scaled scores (..., H, N, N_k) with these terms, in PyTorch.

    distance (N, N_k) is the signed distance between a query's position and a key; alibi_slopes is (..., H).
    """
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.to(scores.dtype)[..., None, None] * distance.abs()
    return scores


def log_sum_with_sinks(lse: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """The log-sum-exp (..., H, N) with each head's sink included."""
    return lse if sinks is None else torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])
