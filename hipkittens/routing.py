# SPDX-License-Identifier: MIT
"""Which experts tokens go to, and tokens in the order of their experts."""

from __future__ import annotations

import math

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_flag, check_tensor, check_whole_number, number
from .selection import DTYPES

SCORES = ("softmax", "sigmoid", "sqrtsoftplus")  # in the order of csrc/kernels/router/kinds.h
MOST_EXPERTS, MOST_GROUPS = 1536, 64  # most_experts and most_groups of csrc/kernels/router
_SMALLEST_SUM = 1e-20  # what sums of scores are raised by, as DeepSeek does


@_backend.interruptible
def router(
    logits: torch.Tensor,
    k: int,
    *,
    score: str = "softmax",
    bias: torch.Tensor | None = None,
    groups: int = 1,
    topk_groups: int = 1,
    renormalize: bool = False,
    scale: float = 1.0,
    shared: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k experts of each token and their weights: a mixture of experts' scores, top-k and renormalisation in one launch.

    logits   (..., E) float32, bfloat16 or float16, E up to 1536; all arithmetic is float32
    score    "softmax" over E, "sigmoid", or "sqrtsoftplus", sqrt(log(1 + e^x))
    bias     (E,), added to the scores where experts are chosen, and never part of a weight (DeepSeek-V3's
             e_score_correction_bias)
    groups   E is cut into so many groups, up to 64, and experts are chosen from the best topk_groups of them only. A group is as
             good as its best expert; with a bias, as the sum of its best two
    renormalize  weights are divided by their sum, with sigmoid and sqrtsoftplus by 1e-20 more
    scale    of all weights, whatever the number of tokens
    shared   so many experts that every token goes to follow, with the numbers E, E + 1, ... and weight 1

    Returns weights (..., k + shared) float32, differentiable in logits, and ids (..., k + shared) int32, the best first. Without
    a bias experts are in the order of their logits, which all scores keep, so that scores that round to one number, such as
    sigmoid(20) and sigmoid(30), do not change the choice. Ties are the lower id's. NaN is greater than all, as in torch.topk:
    an expert with a NaN is chosen first, and its weight is NaN; with softmax or renormalize the whole token's are. Experts with
    -inf are chosen last, each once, with weight 0. The bias gets no gradient.
    Raises TypeError or ValueError, before anything is launched, for what has no kernel.
    """
    where = "hipkittens.router"
    check_tensor(where, "logits", logits)
    check_dtype_and_device(where, "logits", logits, DTYPES, "logits", logits)
    if logits.dim() == 0:
        raise ValueError(f"{where}: logits has shape (); it needs at least 1 dimension, the experts")
    experts = logits.shape[-1]
    for name, value in (("k", k), ("groups", groups), ("topk_groups", topk_groups), ("shared", shared)):
        check_whole_number(where, name, value)
    if not 1 <= experts <= MOST_EXPERTS:
        raise ValueError(f"{where}: logits has {experts} experts; allowed: 1 to {MOST_EXPERTS}")
    if score not in SCORES:
        raise ValueError(f"{where}: score is {score!r}; allowed: {', '.join(map(repr, SCORES))}")
    if not 1 <= groups <= MOST_GROUPS or experts % groups:
        raise ValueError(
            f"{where}: groups is {groups}; allowed: 1 to {MOST_GROUPS} that divide the {experts} experts"
        )
    if not 1 <= topk_groups <= groups:
        raise ValueError(f"{where}: topk_groups is {topk_groups}; allowed: 1 to groups, which is {groups}")
    most = experts // groups * topk_groups
    if not 1 <= k <= most:
        raise ValueError(
            f"{where}: k is {k}; allowed: 1 to {most}, the experts of {topk_groups} of {groups} groups"
        )
    if shared < 0:
        raise ValueError(f"{where}: shared is {shared}; it must be 0 or more")
    check_flag(where, "renormalize", renormalize)
    scale = number(where, "scale", scale)
    if not -math.inf < scale < math.inf:
        raise ValueError(f"{where}: scale is {scale}; it must be finite")
    if bias is not None:
        check_tensor(where, "bias", bias)
        check_dtype_and_device(where, "bias", bias, DTYPES, "logits", logits)
        if bias.shape != (experts,):
            raise ValueError(
                f"{where}: bias has shape {tuple(bias.shape)}; it needs ({experts},), one for each expert"
            )
        bias = bias.detach().float().contiguous()
    _backend.check_device(where, "logits", logits)
    options = (SCORES.index(score), groups, topk_groups, bool(renormalize), scale, shared)
    if _backend.uses_torch():
        return _in_torch(logits, bias, k, *options)
    return torch.ops.hipkittens.router(logits, bias, k, *options)


def scores_in_torch(logits, score):
    if SCORES[score] == "softmax":
        return logits.softmax(-1)
    return logits.sigmoid() if SCORES[score] == "sigmoid" else torch.nn.functional.softplus(logits).sqrt()


def choice_in_torch(logits, bias, k, score, groups, topk_groups):
    """Ids, by a stable sort."""
    value = logits if bias is None else scores_in_torch(logits, score) + bias
    if groups > 1:
        grouped = value.unflatten(-1, (groups, -1))
        best = grouped.sort(-1, descending=True).values[..., : 1 if bias is None else 2].sum(-1)
        chosen = best.sort(stable=True, dim=-1, descending=True).indices[..., :topk_groups]
        there = torch.zeros_like(best, dtype=torch.bool).scatter(-1, chosen, True)
        # Behind all that is there, -inf included.
        order = value.sort(stable=True, dim=-1, descending=True).indices
        absent = ~there.repeat_interleave(value.shape[-1] // groups, -1).gather(-1, order)
        return order.gather(-1, absent.sort(stable=True, dim=-1).indices)[..., :k]
    return value.sort(stable=True, dim=-1, descending=True).indices[..., :k]


def weights_in_torch(logits, ids, score, renormalize, scale):
    """Of float logits."""
    if SCORES[score] == "softmax" and renormalize:
        return logits.gather(-1, ids).softmax(-1) * scale
    weights = scores_in_torch(logits, score).gather(-1, ids)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + _SMALLEST_SUM)
    return weights * scale


def _in_torch(logits, bias, k, score, groups, topk_groups, renormalize, scale, shared):
    logits = logits.float()
    ids = choice_in_torch(logits.detach(), bias, k, score, groups, topk_groups)
    weights = weights_in_torch(logits, ids, score, renormalize, scale)
    others = torch.arange(logits.shape[-1], logits.shape[-1] + shared, device=logits.device)
    rows = (*ids.shape[:-1], shared)
    return (
        torch.cat([weights, weights.new_ones(rows)], -1),
        torch.cat([ids, others.expand(rows)], -1).to(torch.int32),
    )
