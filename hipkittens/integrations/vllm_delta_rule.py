# SPDX-License-Identifier: MIT
"""The functions with which vLLM's Qwen3-Next decodes, by vLLM's names and argument orders: its two gated delta rules over a pool of states,
and the reordering of its projection's columns.

    from hipkittens.integrations.vllm_delta_rule import fused_sigmoid_gating_delta_rule_update

Written against vllm/model_executor/layers/fla/ops and models/qwen3_next.py (github.com/vllm-project/vllm, of 2026). **None has run with
vLLM itself.** States are (slots, HV, K, V), or with state_v_first, which vLLM does not have, (slots, HV, V, K).
"""

from __future__ import annotations

import math

import torch

from .._arguments import check_tensor
from ..delta_rule import gated_delta_step
from ..kimi_delta import kimi_delta_step

__all__ = [
    "fused_qkvzba_split_reshape_cat",
    "fused_recurrent_gated_delta_rule",
    "fused_sigmoid_gating_delta_rule_update",
]

# From this value on log(1 + e^x) is x in float32: e^-17 is less than half a unit in the last place of 17.
_SMALLEST_THRESHOLD = 17.0


def fused_recurrent_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    inplace_final_state: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    *,
    state_v_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, initial_state): `hipkittens.gated_delta_step`, which updates the states of the pool initial_state in place.

    ssm_state_indices is its state_indices and num_accepted_tokens its accepted; without beta it is 1. Raises NotImplementedError for
    inplace_final_state=False.
    """
    where = "hipkittens.integrations.vllm_delta_rule.fused_recurrent_gated_delta_rule"
    state = _pool(where, initial_state, inplace_final_state)
    check_tensor(where, "v", v)
    if beta is None:
        beta = torch.ones(v.shape[:3], dtype=torch.float32, device=v.device)
    out = gated_delta_step(
        q, k, v, g, beta, state, state_indices=ssm_state_indices, accepted=num_accepted_tokens, scale=scale,
        l2norm=use_qk_l2norm_in_kernel, cu_seqlens=cu_seqlens, state_layout="vk" if state_v_first else "kv",
    )  # fmt: skip
    return out, state


def fused_sigmoid_gating_delta_rule_update(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    inplace_final_state: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    is_kda: bool = False,
    *,
    state_v_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with the gates in the kernel: g = -exp(A_log) softplus(a + dt_bias), and sigmoid(b) for beta.

    a and b contain one number for each token and head of v, in any shape; with is_kda, which is `hipkittens.kimi_delta_step`, a and dt_bias
    contain one for each channel of the key. beta and threshold are those of softplus, which has kernels for 1 and for thresholds that
    float32 cannot distinguish from none (17 and above). Raises NotImplementedError for others.
    """
    where = "hipkittens.integrations.vllm_delta_rule.fused_sigmoid_gating_delta_rule_update"
    state = _pool(where, initial_state, inplace_final_state)
    if beta != 1.0:
        raise NotImplementedError(f"{where}: beta is {beta}; softplus has kernels for 1")
    if threshold < _SMALLEST_THRESHOLD:
        raise NotImplementedError(
            f"{where}: threshold is {threshold}; allowed: {_SMALLEST_THRESHOLD:.0f} and above, where float32 has no other softplus"
        )
    tensors = {"A_log": A_log, "a": a, "b": b, "dt_bias": dt_bias, "k": k, "v": v}
    for name, value in tensors.items():
        check_tensor(where, name, value)
    heads, channels = tuple(v.shape[:3]), tuple(k.shape[3:]) if is_kda else ()
    shapes = {"A_log": heads[2:], "a": heads + channels, "b": heads, "dt_bias": heads[2:] + channels}
    for name, shape in shapes.items():
        if tensors[name].numel() != math.prod(shape):
            raise ValueError(
                f"{where}: {name} has shape {tuple(tensors[name].shape)}; it needs as many elements as {shape}"
            )
    A_log, a, b, dt_bias = (tensors[name].reshape(shape) for name, shape in shapes.items())
    step = kimi_delta_step if is_kda else gated_delta_step
    out = step(
        q, k, v, a, b, state, state_indices=ssm_state_indices, accepted=num_accepted_tokens, scale=scale,
        l2norm=use_qk_l2norm_in_kernel, A_log=A_log, dt_bias=dt_bias, beta_logits=True, cu_seqlens=cu_seqlens,
        state_layout="vk" if state_v_first else "kv",
    )  # fmt: skip
    return out, state


def fused_qkvzba_split_reshape_cat(
    mixed_qkvz: torch.Tensor,
    mixed_ba: torch.Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(mixed_qkv, z, b, a) from Qwen3-Next's two projections, whose columns are grouped by heads of q.

    mixed_qkvz (tokens, columns) contains for each head of q: q, k (head_qk each), v and z of its heads of v (head_v each); mixed_ba for
    each head of q the b and then the a of its heads of v. mixed_qkv (tokens, ..) contains all of q, then k, then v, as the causal
    convolution expects it; z is (tokens, num_heads_v, head_v), b and a are (tokens, num_heads_v), all contiguous. Uses PyTorch copies, not
    a single launch.
    """
    where = "hipkittens.integrations.vllm_delta_rule.fused_qkvzba_split_reshape_cat"
    if num_heads_qk < 1 or num_heads_v % num_heads_qk:
        raise ValueError(
            f"{where}: num_heads_v is {num_heads_v} and num_heads_qk {num_heads_qk}; allowed: a multiple of those of q"
        )
    group = num_heads_v // num_heads_qk
    widths = (head_qk, head_qk, group * head_v, group * head_v)
    for name, value, columns in (("mixed_qkvz", mixed_qkvz, sum(widths)), ("mixed_ba", mixed_ba, 2 * group)):
        check_tensor(where, name, value)
        if value.dim() != 2 or value.shape[1] != num_heads_qk * columns:
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)}; it needs (tokens, {num_heads_qk * columns})"
            )
    tokens = mixed_qkvz.shape[0]
    if mixed_ba.shape[0] != tokens:
        raise ValueError(
            f"{where}: mixed_ba has {mixed_ba.shape[0]} tokens and mixed_qkvz {tokens}; they must be equal"
        )
    *qkv, z = mixed_qkvz.view(tokens, num_heads_qk, sum(widths)).split(widths, -1)
    b, a = (
        part.reshape(tokens, num_heads_v)
        for part in mixed_ba.view(tokens, num_heads_qk, 2 * group).split(group, -1)
    )
    return torch.cat([part.flatten(1) for part in qkv], 1), z.reshape(tokens, num_heads_v, head_v), b, a


def _pool(where: str, state: torch.Tensor | None, in_place: bool) -> torch.Tensor:
    if not in_place:
        raise NotImplementedError(
            f"{where}: inplace_final_state is {in_place!r}; states are changed in place; pass True, and a copy of the pool"
        )
    if state is None:
        raise ValueError(f"{where}: initial_state is None; pass the pool of states, (slots, HV, K, V)")
    return state
