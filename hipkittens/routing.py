# SPDX-License-Identifier: MIT
"""Expert routing: which experts tokens are sent to, and sorting tokens by expert."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_flag, check_tensor, check_whole_number, number
from ._call import call
from .gemm import matmul
from .selection import DTYPES

SCORES = ("softmax", "sigmoid", "sqrtsoftplus")  # in the order of csrc/kernels/router/kinds.h
MOST_EXPERTS, MOST_GROUPS = 1536, 64  # most_experts and most_groups of csrc/kernels/router
MOST_TOP1_EXPERTS = 16  # most_top1_experts
_ID_DTYPES = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
_SMALLEST_SUM = 1e-20  # added to sums of scores, as in DeepSeek


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
    """Select the top-k experts of each token and their weights: scores, top-k and renormalization in one launch.

    - `logits`: (..., E) float32, bfloat16 or float16, E up to 1536. All arithmetic is float32.
    - `k`: the number of experts of each token.
    - `score`: "softmax" over E, "sigmoid", or "sqrtsoftplus", sqrt(log(1 + e^x)).
    - `bias`: (E,), added to the scores for the selection only, never to the weights (DeepSeek-V3's e_score_correction_bias). Gets no
      gradient.
    - `groups`, `topk_groups`: experts are divided into `groups` groups, up to 64, and chosen only from the best topk_groups of them. The
      score of a group is that of its best expert; with a bias, the sum of its best two.
    - `renormalize`: divide weights by their sum; with sigmoid and sqrtsoftplus by the sum + 1e-20.
    - `scale`: a factor of all weights, whatever the number of tokens.
    - `shared`: the number of shared experts, appended to every token's choices with ids E, E + 1, ... and weight 1.

    Returns weights (..., k + shared) float32, differentiable in logits, and ids (..., k + shared) int32, the best first.

    Without a bias, experts are ordered by their logits. All scores preserve that order, so scores that round to the same number, such as
    sigmoid(20) and sigmoid(30), do not change the choice. Ties go to the lower id. NaN is greater than everything, as in torch.topk: an
    expert with a NaN is chosen first and has a NaN weight; with softmax or renormalize all weights of the token are NaN. Experts with -inf
    are chosen last, each once, with weight 0. Raises TypeError or ValueError, before anything is launched, for arguments that no kernel
    supports.
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
    return call("router", logits, bias, k, *options)


@_backend.interruptible
def router_top1(x: torch.Tensor, w: torch.Tensor, *, shared: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Select the best expert of each token by the sigmoid of its logit (Llama 4), with the router's matrix product in the same call.

    The result is router(x @ w, 1, score="sigmoid", shared=shared), but the logits stay float32. `x` (..., K) and `w` (K, E) are bfloat16 or
    float16, both the same, E up to 1536. Returns weights (..., 1 + shared) float32, differentiable in x and w, and ids (..., 1 + shared)
    int32, as described in `router`. Up to 16 experts take one launch, in which every workgroup reads all of w; more experts take the
    launches of `matmul` and `router`, which read less. Raises TypeError or ValueError, before anything is launched, for arguments that no
    kernel supports.
    """
    where = "hipkittens.router_top1"
    for name, value in (("x", x), ("w", w)):
        check_tensor(where, name, value)
        check_dtype_and_device(where, name, value, (torch.bfloat16, torch.float16), "x", x)
    if x.dtype != w.dtype:
        raise TypeError(f"{where}: x is {x.dtype} and w {w.dtype}; they must be the same")
    if x.dim() == 0 or w.dim() != 2 or x.shape[-1] != w.shape[0]:
        raise ValueError(
            f"{where}: x has shape {tuple(x.shape)} and w {tuple(w.shape)}; they must be (..., K) and (K, experts)"
        )
    if not 1 <= w.shape[1] <= MOST_EXPERTS:
        raise ValueError(f"{where}: w has {w.shape[1]} experts; allowed: 1 to {MOST_EXPERTS}")
    check_whole_number(where, "shared", shared)
    if shared < 0:
        raise ValueError(f"{where}: shared is {shared}; it must be 0 or more")
    rows = x.reshape(-1, x.shape[-1]) if x.dim() != 2 else x
    if w.shape[1] > MOST_TOP1_EXPERTS or _backend.uses_torch():
        logits = matmul(rows, w, out_dtype=torch.float32).reshape(*x.shape[:-1], w.shape[1])
        return router(logits, 1, score="sigmoid", shared=shared)
    _backend.check_device(where, "x", x)
    weights, ids, _ = call("router_top1", rows, w, shared)
    shape = (*x.shape[:-1], 1 + shared)
    return weights.reshape(shape), ids.reshape(shape)


def scores_in_torch(logits, score):
    if SCORES[score] == "softmax":
        return logits.softmax(-1)
    return logits.sigmoid() if SCORES[score] == "sigmoid" else torch.nn.functional.softplus(logits).sqrt()


def choice_in_torch(logits, bias, k, score, groups, topk_groups):
    """The ids, by a stable sort."""
    value = logits if bias is None else scores_in_torch(logits, score) + bias
    if groups > 1:
        grouped = value.unflatten(-1, (groups, -1))
        best = grouped.sort(-1, descending=True).values[..., : 1 if bias is None else 2].sum(-1)
        chosen = best.sort(stable=True, dim=-1, descending=True).indices[..., :topk_groups]
        there = torch.zeros_like(best, dtype=torch.bool).scatter(-1, chosen, True)
        # After all others, -inf included.
        order = value.sort(stable=True, dim=-1, descending=True).indices
        absent = ~there.repeat_interleave(value.shape[-1] // groups, -1).gather(-1, order)
        return order.gather(-1, absent.sort(stable=True, dim=-1).indices)[..., :k]
    return value.sort(stable=True, dim=-1, descending=True).indices[..., :k]


def weights_in_torch(logits, ids, score, renormalize, scale):
    """The weights from float32 logits."""
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


class AlignedExperts(NamedTuple):
    """expert_sort's result for grouped GEMMs over whole blocks (AITER's moe_align_block_size).

    entries        the pair of each place, numbered token * k + choice; the number of pairs where there is none
    weights        of each place, 0 where there is no pair; None without weights
    block_experts  the expert of each block, -1 past the last block
    tokens_left    pairs of its expert from this block on
    offsets        the first place of each expert; offsets[num_experts] is the place past the last
    num_valid      offsets[num_experts] again, and the number of tokens
    places         of each pair, -1 without an expert
    """

    entries: torch.Tensor
    weights: torch.Tensor | None
    block_experts: torch.Tensor
    tokens_left: torch.Tensor
    offsets: torch.Tensor
    num_valid: torch.Tensor
    places: torch.Tensor


class PackedExperts(NamedTuple):
    """Like AlignedExperts, with entries choice << 24 | token, and k << 24 | tokens where there is none (AITER's moe_sorting)."""

    entries: torch.Tensor
    weights: torch.Tensor | None
    block_experts: torch.Tensor
    tokens_left: torch.Tensor
    offsets: torch.Tensor
    num_valid: torch.Tensor
    places: torch.Tensor


class RaggedExperts(NamedTuple):
    """expert_sort's result without padding: the pairs of expert e are entries[offsets[e] : offsets[e + 1]].

    entries   pairs in the order of experts, -1 past offsets[num_experts]
    weights   of each place, 0 where there is no pair; None without weights
    offsets   the first place of each expert, and the place past the last
    places    of each pair, -1 without an expert: the inverse of entries
    """

    entries: torch.Tensor
    weights: torch.Tensor | None
    offsets: torch.Tensor
    places: torch.Tensor


LAYOUTS = {"aligned": AlignedExperts, "packed": PackedExperts, "ragged": RaggedExperts}
_MOST_BLOCK, _MOST_TOKENS, _MOST_CHOICES = 65536, (1 << 24) - 1, 127


@_backend.interruptible
def expert_sort(
    ids: torch.Tensor,
    weights: torch.Tensor | None,
    num_experts: int,
    block: int | None = None,
    layout: str = "aligned",
    *,
    expert_map: torch.Tensor | None = None,
) -> AlignedExperts | PackedExperts | RaggedExperts:
    """Sort (token, expert) pairs by expert, stably, so that the pairs of one expert are in the order of tokens.

    - `ids`: (tokens, k) or (tokens,), int32 (int64, int16, int8 and uint8 are converted): the experts of each token. Ids that are negative
      or not below `num_experts`, up to 1536, are ignored.
    - `weights`: of the same shape, float32, bfloat16 or float16, permuted in the same way as float32; or None. Differentiable.
    - `block`: for "aligned" and "packed": every expert begins at a multiple of it, up to 65536. An expert without pairs takes no block.
    - `layout`: "aligned" returns AlignedExperts, "packed" PackedExperts, "ragged" RaggedExperts.
    - `expert_map`: int32, the index among this device's num_experts for each id, negative for other devices' experts (vLLM's expert_map).

    Results have room for every possible choice of experts, so that nothing waits for the device: entries has
    pairs + min(pairs, num_experts) (block - 1) places, rounded up to whole blocks. Up to 65536 pairs take one launch, more take three. All
    values are integers, so the result is the same in every run. "packed" holds up to 16777215 tokens with 127 choices. Raises TypeError or
    ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.expert_sort"
    check_tensor(where, "ids", ids)
    check_dtype_and_device(where, "ids", ids, _ID_DTYPES, "ids", ids)
    if ids.dim() not in (1, 2):
        raise ValueError(f"{where}: ids has shape {tuple(ids.shape)}; it needs (tokens, k) or (tokens,)")
    check_whole_number(where, "num_experts", num_experts)
    if not 1 <= num_experts <= MOST_EXPERTS:
        raise ValueError(f"{where}: num_experts is {num_experts}; allowed: 1 to {MOST_EXPERTS}")
    if layout not in LAYOUTS:
        raise ValueError(f"{where}: layout is {layout!r}; allowed: {', '.join(map(repr, LAYOUTS))}")
    if layout == "ragged":
        if block is not None:
            raise ValueError(f"{where}: block is {block!r}; ragged experts have none: leave it out")
        block = 1
    if block is None:
        raise ValueError(f"{where}: block is None; layout {layout!r} needs one, 1 to {_MOST_BLOCK}")
    check_whole_number(where, "block", block)
    if not 1 <= block <= _MOST_BLOCK:
        raise ValueError(f"{where}: block is {block}; allowed: 1 to {_MOST_BLOCK}")
    tokens, k = ids.shape if ids.dim() == 2 else (ids.shape[0], 1)
    if k < 1:
        raise ValueError(f"{where}: ids has shape {tuple(ids.shape)}; a token needs at least 1 choice")
    if layout == "packed" and (tokens > _MOST_TOKENS or k > _MOST_CHOICES):
        raise ValueError(
            f"{where}: ids has shape {tuple(ids.shape)}; layout 'packed' holds up to {_MOST_TOKENS} tokens of {_MOST_CHOICES} choices"
        )
    if weights is not None:
        check_tensor(where, "weights", weights)
        check_dtype_and_device(where, "weights", weights, DTYPES, "ids", ids)
        if weights.shape != ids.shape:
            raise ValueError(
                f"{where}: weights has shape {tuple(weights.shape)}; it needs that of ids, {tuple(ids.shape)}"
            )
        weights = weights.float().reshape(tokens, k).contiguous()
    if expert_map is not None:
        check_tensor(where, "expert_map", expert_map)
        check_dtype_and_device(where, "expert_map", expert_map, (torch.int32,), "ids", ids)
        if expert_map.dim() != 1 or not expert_map.numel():
            raise ValueError(
                f"{where}: expert_map has shape {tuple(expert_map.shape)}; it needs (ids,), with an element for each id"
            )
        expert_map = expert_map.contiguous()
    _backend.check_device(where, "ids", ids)
    pairs = ids.to(torch.int32).reshape(tokens, k).contiguous()
    arguments = (pairs, weights, expert_map, num_experts, block, list(LAYOUTS).index(layout))
    found = _sort_in_torch(*arguments) if _backend.uses_torch() else call("expert_sort", *arguments)
    in_order, entries, block_experts, tokens_left, offsets, num_valid, places = found
    kept = None if weights is None else in_order
    if layout == "ragged":
        return RaggedExperts(entries, kept, offsets, places.reshape(ids.shape))
    return LAYOUTS[layout](
        entries, kept, block_experts, tokens_left, offsets, num_valid, places.reshape(ids.shape)
    )


def capacity(pairs, num_experts, block):
    """As in plan.h in csrc/kernels/expert_sort."""
    fewer = torch.sym_min(pairs, num_experts)
    return (pairs + fewer * (block - 1) + block - 1) // block * block


def _sort_in_torch(ids, weights, expert_map, num_experts, block, layout):
    tokens, k = ids.shape
    device, pairs = ids.device, tokens * k
    flat = ids.reshape(-1).long()
    if expert_map is not None:
        known = (flat >= 0) & (flat < expert_map.numel())
        flat = torch.where(known, expert_map.long()[flat.clamp(0, expert_map.numel() - 1)], -1)
    flat = torch.where((flat >= 0) & (flat < num_experts), flat, num_experts)
    counts = torch.bincount(flat, minlength=num_experts + 1)[:num_experts]
    room = (counts + block - 1) // block * block
    offsets = torch.cat([room.new_zeros(1), room.cumsum(0)])
    first = torch.cat([room.new_zeros(1), counts.cumsum(0)])
    order = flat.sort(stable=True).indices
    sorted_ids = flat[order]
    place = offsets[sorted_ids] + torch.arange(pairs, device=device) - first[sorted_ids]
    there = sorted_ids < num_experts
    order, place = order[there], place[there]
    size = capacity(pairs, num_experts, block)
    padding = (pairs, k << 24 | tokens, -1)[layout]
    entry = order % k << 24 | order // k if layout == 1 else order
    entries = torch.full((size,), padding, device=device).scatter(0, place, entry)
    in_order = torch.zeros(0 if weights is None else size, device=device)
    if weights is not None:
        in_order = in_order.scatter(0, place, weights.reshape(-1)[order])
    places = torch.full((pairs,), -1, device=device).scatter(0, order, place).reshape(ids.shape)
    begins = torch.arange(0, 0 if layout == 2 else size, block, device=device)
    owner = torch.searchsorted(offsets[1:].contiguous(), begins, right=True)
    left = (counts[owner.clamp(max=num_experts - 1)] - (begins - offsets[owner])).masked_fill(
        owner == num_experts, 0
    )
    owner = owner.masked_fill(owner == num_experts, -1)
    num_valid = torch.stack([offsets[-1], torch.tensor(tokens, device=device)])
    numbers = [each.to(torch.int32) for each in (entries, owner, left, offsets, num_valid, places)]
    return in_order, *numbers
