# SPDX-License-Identifier: MIT
"""Sampling by AITER's names: `hipkittens.sample` into out. Temperatures below 1e-5 count as 1e-5; in mixed_* those of 0 are greedy."""

from __future__ import annotations

import math

import torch

from ..sampling import LEAST_TEMPERATURE, sample
from ..selection import MOST, topk
from ._results import put, refuse


def greedy_sample(out: torch.Tensor, input: torch.Tensor) -> None:
    """The largest logit of each row, the first of equal ones."""
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
    """random_sample_outer_exponential, with exponentials that torch draws from generator: not AITER's random numbers."""
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
    """out, drawn by torch from the exponential distribution of rate lambd: above 0, so eps adds nothing and must be the default."""
    if eps != 1e-10:
        refuse("exponential", "eps", eps, "leave it out")
    out.exponential_(lambd, generator=generator)


def top_k_renorm_probs(
    probs: torch.Tensor, maybe_top_k_arr: torch.Tensor | None, top_k_val: int
) -> torch.Tensor:
    """probs [rows, columns] over the sum of each row's k largest, float32, and 0 where they are less than the k-th; elements equal to it
    are kept. k: top_k_val, or a number for each row. A single number up to 2048 uses `hipkittens.topk`, others torch.sort.
    """
    name = "top_k_renorm_probs"
    probs = _probabilities(name, probs)
    least = _kth(name, probs, maybe_top_k_arr, top_k_val)
    kept = probs.masked_fill(probs < least, 0)
    return kept / kept.sum(-1, keepdim=True)


def top_p_sampling_from_probs(
    probs: torch.Tensor,
    indices: torch.Tensor | None,
    maybe_top_p_arr: torch.Tensor | None,
    top_p_val: float,
    deterministic: bool = False,
) -> torch.Tensor:
    """int32 columns, drawn from the smallest set of most probable ones of each row that reaches top_p: `hipkittens.sample` with top_p.
    indices: the row of probs for each result. Always deterministic, given torch's random numbers, which are not AITER's.
    """
    name = "top_p_sampling_from_probs"
    probs = _chosen_rows(name, _probabilities(name, probs), indices)
    return _sampled(name, probs, None, maybe_top_p_arr, top_p_val)


def top_k_top_p_sampling_from_probs(
    probs: torch.Tensor,
    indices: torch.Tensor | None,
    maybe_top_k_arr: torch.Tensor | None,
    top_k_val: int,
    maybe_top_p_arr: torch.Tensor | None,
    top_p_val: float,
    deterministic: bool = False,
) -> torch.Tensor:
    """`top_p_sampling_from_probs` of columns that are also among the top_k largest of their row; top_p applies to probs as they are,
    without renormalization over the top_k.
    """
    name = "top_k_top_p_sampling_from_probs"
    probs = _chosen_rows(name, _probabilities(name, probs), indices)
    return _sampled(name, probs, _kth(name, probs, maybe_top_k_arr, top_k_val), maybe_top_p_arr, top_p_val)


def _probabilities(name, probs):
    where = f"hipkittens.aiter.{name}"
    if not isinstance(probs, torch.Tensor) or probs.dim() != 2 or probs.shape[1] == 0:
        shape = tuple(probs.shape) if isinstance(probs, torch.Tensor) else type(probs).__name__
        raise ValueError(
            f"{where}: probs is {shape}; it must be a tensor [rows, columns] with 1 column or more"
        )
    return probs.detach().float()


def _chosen_rows(name, probs, indices):
    if indices is None:
        return probs
    if indices.dim() != 1 or indices.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"hipkittens.aiter.{name}: indices is {tuple(indices.shape)} {indices.dtype}; it must be int32 or int64, [results]"
        )
    return probs[indices.long()]


def _of_rows(name, what, given, one, rows):
    if given is None:
        return one
    if given.numel() != rows:
        raise ValueError(
            f"hipkittens.aiter.{name}: {what} has shape {tuple(given.shape)}; it has a number for each of {rows} rows"
        )
    return given.reshape(rows)


def _kth(name, probs, of_rows, one):
    """The k-th largest of each row, [rows, 1]."""
    rows, columns = probs.shape
    k = _of_rows(name, "maybe_top_k_arr", of_rows, one, rows)
    if not isinstance(k, torch.Tensor):
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(
                f"hipkittens.aiter.{name}: top_k_val is {k!r}; it must be a whole number, 1 or more"
            )
        if k <= min(columns, MOST):
            return topk(probs, k)[0][:, -1:]
        k = torch.full((rows,), k, device=probs.device)
    places = k.long().clamp(1, columns)[:, None] - 1
    return probs.sort(-1, descending=True).values.gather(-1, places)


def _sampled(name, probs, least, of_rows, one):
    rows = probs.shape[0]
    top_p = _of_rows(name, "maybe_top_p_arr", of_rows, one, rows)
    if not isinstance(top_p, torch.Tensor):
        if not 0 < float(top_p) <= 1:
            raise ValueError(f"hipkittens.aiter.{name}: top_p_val is {top_p}; it must be above 0, up to 1")
        top_p = torch.full((rows,), float(top_p), device=probs.device)
    values, columns = probs.sort(dim=-1, descending=True, stable=True)
    outside = values.cumsum(-1) - values >= top_p.float()[:, None] * values.sum(-1, keepdim=True)
    if least is not None:
        outside |= values < least
    outside[:, 0] = False
    places = sample(values.log().masked_fill(outside, -math.inf))
    return columns.gather(-1, places[:, None])[:, 0].int()


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
