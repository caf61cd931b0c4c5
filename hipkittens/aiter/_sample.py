# SPDX-License-Identifier: MIT
"""Sampling by AITER's names: `hipkittens.sample` into out. Temperatures below 1e-5 count as 1e-5; in mixed_* those of 0 are greedy."""

from __future__ import annotations

import torch

from ..sampling import LEAST_TEMPERATURE, sample
from ._results import put, refuse


def greedy_sample(out: torch.Tensor, input: torch.Tensor) -> None:
    """The largest logit of each row, of equal ones the first."""
    put("greedy_sample", "out", out, sample(input, temperature=0.0))


def random_sample_outer_exponential(
    out: torch.Tensor,
    input: torch.Tensor,
    exponentials: torch.Tensor,
    temperatures: torch.Tensor,
    eps: float = 1e-10,
) -> None:
    """argmax of softmax(input / temperature) / (exponentials + eps); exponentials may have one row for all."""
    _drawn(
        "random_sample_outer_exponential",
        out,
        input,
        exponentials,
        temperatures.clamp(min=LEAST_TEMPERATURE),
        eps,
    )


def mixed_sample_outer_exponential(
    out: torch.Tensor,
    input: torch.Tensor,
    exponentials: torch.Tensor,
    temperatures: torch.Tensor,
    eps: float = 1e-10,
) -> None:
    """random_sample_outer_exponential, with rows of temperature 0 greedy."""
    _drawn("mixed_sample_outer_exponential", out, input, exponentials, temperatures, eps)


def random_sample(
    out: torch.Tensor,
    input: torch.Tensor,
    temperatures: torch.Tensor,
    lambd: float = 1,
    generator: torch.Generator | None = None,
    eps: float = 1e-10,
) -> None:
    """random_sample_outer_exponential, with exponentials that torch draws with generator: not AITER's random numbers."""
    drawn = _exponentials("random_sample", input, lambd, generator)
    _drawn("random_sample", out, input, drawn, temperatures.clamp(min=LEAST_TEMPERATURE), eps)


def mixed_sample(
    out: torch.Tensor,
    input: torch.Tensor,
    temperature: torch.Tensor,
    lambd: float = 1.0,
    generator: torch.Generator | None = None,
    eps: float = 1e-10,
) -> None:
    """random_sample, with rows of temperature 0 greedy."""
    _drawn(
        "mixed_sample", out, input, _exponentials("mixed_sample", input, lambd, generator), temperature, eps
    )


def exponential(
    out: torch.Tensor, lambd: float = 1, generator: torch.Generator | None = None, eps: float = 1e-10
) -> None:
    """out drawn by torch from the exponential distribution of rate lambd: above 0, so that eps adds nothing and has to be the default."""
    if eps != 1e-10:
        refuse("exponential", "eps", eps, "leave it out")
    out.exponential_(lambd, generator=generator)


def _exponentials(name, input, lambd, generator):
    if not lambd > 0:
        raise ValueError(f"hipkittens.aiter.{name}: lambd is {lambd}; it must be above 0")
    return torch.empty(input.shape, dtype=torch.float32, device=input.device).exponential_(
        float(lambd), generator=generator
    )


def _drawn(name, out, input, exponentials, temperatures, eps) -> None:
    found = sample(
        input,
        temperature=temperatures.reshape(input.shape[:-1]),
        exponentials=exponentials.expand(input.shape),
        eps=eps,
    )
    put(name, "out", out, found.reshape(out.shape))
