# SPDX-License-Identifier: MIT
"""Selection and sorting of experts by AITER's names. Ids that are negative or not those of an expert are ignored."""

from __future__ import annotations

import torch

from .. import selection
from ..routing import PackedExperts, expert_sort, router, router_top1
from ._results import put, refuse


def topk(
    x: torch.Tensor,
    k: int,
    *,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    tiny_row_thresh: int = 1024,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`hipkittens.topk`. tiny_row_thresh chooses among AITER's kernels, and has no effect."""
    return selection.topk(x, k, dim, largest, sorted)


def routing_sigmoid_top1(
    x: torch.Tensor,
    w: torch.Tensor,
    topk: int,
    fused_shared_experts: bool = False,
    config: dict | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, weights) of `hipkittens.router_top1`, each (tokens, 1), or (tokens, 2) with a shared expert, which has the id experts and
    weight 1. topk is 1. config chooses among AITER's kernels, and has no effect.
    """
    if topk != 1:
        refuse("routing_sigmoid_top1", "topk", topk, "use hipkittens.router with score='sigmoid'")
    weights, ids = router_top1(x.reshape(-1, x.shape[-1]), w, shared=int(bool(fused_shared_experts)))
    return ids, weights


def topk_softmax(
    topk_weights: torch.Tensor,
    topk_indices: torch.Tensor,
    token_expert_indices: torch.Tensor,
    gating_output: torch.Tensor,
    need_renorm: bool,
) -> None:
    """The experts with the largest softmax, and their weights; token_expert_indices[t, j] = j * tokens + t."""
    name = "topk_softmax"
    tokens, k = topk_indices.shape
    _route(name, topk_weights, topk_indices, gating_output, k, renormalize=bool(need_renorm))
    numbers = torch.arange(k * tokens, dtype=token_expert_indices.dtype, device=token_expert_indices.device)
    put(name, "token_expert_indices", token_expert_indices, numbers.view(k, tokens).t())


def topk_softmax_asm(
    topk_weights: torch.Tensor,
    topk_indices: torch.Tensor,
    token_expert_indices: torch.Tensor,
    gating_output: torch.Tensor,
    need_renorm: bool,
) -> None:
    """`topk_softmax`, which writes only the first rows: results may have their number of rows rounded up to a multiple of 4."""
    tokens = gating_output.shape[0]
    into = topk_weights[:tokens], topk_indices[:tokens], token_expert_indices[:tokens]
    topk_softmax(*into, gating_output, need_renorm)


def fused_topk(
    hidden_states: torch.Tensor,
    gating_output: torch.Tensor,
    topk: int,
    renormalize: bool,
    topk_ids: torch.Tensor | None = None,
    topk_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, ids) of `topk_softmax`, in the caller's tensors if they are passed. Only the number of rows of hidden_states is used."""
    if hidden_states.shape[0] != gating_output.shape[0]:
        raise ValueError(
            f"hipkittens.aiter.fused_topk: hidden_states has {hidden_states.shape[0]} rows and gating_output "
            f"{gating_output.shape[0]}; they must be equal"
        )
    weights, ids = router(gating_output, topk, renormalize=bool(renormalize))
    if topk_weights is not None:
        put("fused_topk", "topk_weights", topk_weights[: weights.shape[0]], weights)
        weights = topk_weights[: weights.shape[0]]
    if topk_ids is not None:
        put("fused_topk", "topk_ids", topk_ids[: ids.shape[0]], ids)
        ids = topk_ids[: ids.shape[0]]
    return weights, ids


def topk_sigmoid(topk_weights: torch.Tensor, topk_indices: torch.Tensor, gating_output: torch.Tensor) -> None:
    """The experts with the largest logits, and their sigmoids."""
    _route("topk_sigmoid", topk_weights, topk_indices, gating_output, topk_indices.shape[-1], score="sigmoid")


def grouped_topk(
    gating_output: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    num_expert_group: int,
    topk_group: int,
    need_renorm: bool,
    is_softmax: bool = True,
    routed_scaling_factor: float = 1.0,
) -> None:
    """The best experts of the best groups, where a group's score is that of its best expert; weights times routed_scaling_factor."""
    _route("grouped_topk", topk_weights, topk_ids, gating_output, topk_ids.shape[-1], groups=num_expert_group, topk_groups=topk_group,
           renormalize=bool(need_renorm), score="softmax" if is_softmax else "sigmoid", scale=routed_scaling_factor)  # fmt: skip


def biased_grouped_topk(
    gating_output: torch.Tensor,
    correction_bias: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    num_expert_group: int,
    topk_group: int,
    need_renorm: bool,
    routed_scaling_factor: float = 1.0,
) -> None:
    """DeepSeek-V3's selection: experts by sigmoid + bias, groups by the sum of their best two, weights without the bias.

    routed_scaling_factor is always applied; in AITER this depends on the number of tokens.
    """
    _route("biased_grouped_topk", topk_weights, topk_ids, gating_output, topk_ids.shape[-1], score="sigmoid", bias=correction_bias,
           groups=num_expert_group, topk_groups=topk_group, renormalize=bool(need_renorm), scale=routed_scaling_factor)  # fmt: skip


def biased_grouped_topk_hip(
    gating_output: torch.Tensor,
    correction_bias: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    num_expert_group: int,
    topk_grp: int,
    need_renorm: bool,
    routed_scaling_factor: float = 1.0,
) -> None:
    """`biased_grouped_topk`."""
    biased_grouped_topk(
        gating_output, correction_bias, topk_weights, topk_ids, num_expert_group, topk_grp, need_renorm, routed_scaling_factor
    )  # fmt: skip


def moe_fused_gate(
    input: torch.Tensor,
    bias: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    num_expert_group: int,
    topk_group: int,
    topk: int,
    n_share_experts_fusion: int,
    routed_scaling_factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`biased_grouped_topk` with renormalized weights times routed_scaling_factor; returns (topk_weights, topk_ids) themselves.

    A NaN is greater than everything here, and 0 in AITER. n_share_experts_fusion is not supported.
    """
    if n_share_experts_fusion:
        refuse(
            "moe_fused_gate",
            "n_share_experts_fusion",
            n_share_experts_fusion,
            "hipkittens.router has `shared`, of weight 1",
        )
    _route("moe_fused_gate", topk_weights, topk_ids, input, topk, score="sigmoid", bias=bias, groups=num_expert_group,
           topk_groups=topk_group, renormalize=True, scale=routed_scaling_factor)  # fmt: skip
    return topk_weights, topk_ids


def moe_align_block_size(
    topk_ids: torch.Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: torch.Tensor,
    experts_ids: torch.Tensor,
    token_nums: torch.Tensor,
    num_tokens_post_pad: torch.Tensor,
) -> None:
    """Pairs in the order of experts, each of which begins at a multiple of block_size.

    Places without a pair contain topk_ids.numel(), blocks past the last one the expert -1. There is room for
    numel + num_experts * (block_size - 1) places; if the tensor has more, the last ones are unchanged. token_nums: pairs of a block's
    expert from this block on.
    """
    name = "moe_align_block_size"
    found = _aligned(
        name, topk_ids, num_experts, block_size, sorted_token_ids, experts_ids, num_tokens_post_pad
    )
    _put_first(
        name, "token_nums", token_nums, found.tokens_left, _most_blocks(topk_ids, num_experts, block_size)
    )


def moe_align_block_size_triton(
    topk_ids: torch.Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_pad: torch.Tensor,
) -> None:
    """`moe_align_block_size` without token_nums."""
    _aligned(
        "moe_align_block_size_triton",
        topk_ids,
        num_experts,
        block_size,
        sorted_token_ids,
        expert_ids,
        num_tokens_post_pad,
    )


def moe_sorting_fwd(
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    sorted_token_ids: torch.Tensor,
    sorted_weights: torch.Tensor,
    sorted_expert_ids: torch.Tensor,
    num_valid_ids: torch.Tensor,
    moe_buf: torch.Tensor,
    num_experts: int,
    unit_size: int,
    local_expert_mask: torch.Tensor | None = None,
    num_local_tokens: torch.Tensor | None = None,
    dispatch_policy: int = 0,
) -> None:
    """Pairs in the order of experts as slot << 24 | token, padding as k << 24 | tokens with weight 0; moe_buf is zeroed.

    local_expert_mask: experts with 0 are left out, and the others numbered from 0. num_local_tokens: only the first so many tokens are
    used. num_valid_ids: the number of padded pairs, and of tokens that are used. dispatch_policy chooses among AITER's kernels, and has no
    effect.
    """
    name = "moe_sorting_fwd"
    ids, expert_map = topk_ids, None
    if num_local_tokens is not None:
        ids = those_that_count(ids, num_local_tokens)
    if local_expert_mask is not None:
        expert_map = local_numbers(local_expert_mask)
    found = expert_sort(ids, topk_weights, num_experts, unit_size, "packed", expert_map=expert_map)
    assert isinstance(found, PackedExperts)
    blocks = _most_blocks(topk_ids, num_experts, unit_size)
    _put_first(name, "sorted_token_ids", sorted_token_ids, found.entries, blocks * unit_size)
    _put_first(name, "sorted_weights", sorted_weights, found.weights, blocks * unit_size)
    _put_first(name, "sorted_expert_ids", sorted_expert_ids, found.block_experts, blocks)
    valid = found.num_valid
    if num_local_tokens is not None:
        valid = torch.stack((valid[0], num_local_tokens.reshape(()).to(valid.dtype)))
    put(name, "num_valid_ids", num_valid_ids, valid)
    moe_buf.zero_()


def those_that_count(ids: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The ids of the first so many tokens, -1 for others."""
    token = torch.arange(ids.shape[0], device=ids.device)[:, None]
    return torch.where(token < tokens.reshape(()), ids, -1)


def local_numbers(mask: torch.Tensor) -> torch.Tensor:
    """For AITER's mask of local experts: the index of each among those, -1 for others."""
    local = mask != 0
    return torch.where(local, local.cumsum(0) - 1, -1).to(torch.int32)


def _route(name, weights, ids, logits, k, **options) -> None:
    found, chosen = router(logits, k, **options)
    put(name, "topk_weights", weights, found)
    put(name, "topk_ids", ids, chosen)


def _aligned(name, ids, experts, block, entries, block_experts, padded):
    found = expert_sort(ids, None, experts, block)
    blocks = _most_blocks(ids, experts, block)
    _put_first(name, "sorted_token_ids", entries, found.entries, blocks * block)
    _put_first(name, "expert_ids", block_experts, found.block_experts, blocks)
    put(name, "num_tokens_post_pad", padded, found.num_valid[:1].reshape(padded.shape))
    return found


def _most_blocks(ids, experts, block):
    """The largest possible number of whole blocks, whatever experts are chosen. expert_sort may have room for one more."""
    pairs = ids.numel()
    return (pairs + min(pairs, experts) * (block - 1)) // block


def _put_first(name, argument, into, result, needed) -> None:
    """Copies as much of result as there is room for, which must be at least the first `needed`."""
    if into.dim() != 1 or into.shape[0] < needed:
        raise ValueError(
            f"hipkittens.aiter.{name}: {argument} has shape {tuple(into.shape)}; it needs {needed} places or more"
        )
    size = min(into.shape[0], result.shape[0])
    put(name, argument, into[:size], result[:size])
