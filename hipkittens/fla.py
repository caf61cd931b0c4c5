# SPDX-License-Identifier: MIT
"""flash-linear-attention's gated delta rules and helpers, with its names and argument orders (fla-core 0.5 and 0.6).

    from hipkittens.fla import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule, l2norm, prepare_chunk_indices
    from hipkittens.fla import chunk_kda, fused_recurrent_kda

The first two call `hipkittens.gated_delta_rule`, which chooses by itself when to compute in chunks, with derivatives. The last two call
`hipkittens.kimi_delta_attention`, without derivatives. Arguments without a kernel are refused by name.
"""

from __future__ import annotations

from typing import Any

import torch

from ._arguments import check_tensor, number
from ._packed_indices import (
    prepare_chunk_indices,
    prepare_chunk_offsets,
    prepare_lens,
    prepare_position_ids,
    prepare_sequence_ids,
    prepare_token_indices,
)
from .delta_rule import gated_delta_rule
from .kimi_delta import kimi_delta_attention
from .norm import rms_norm

__all__ = [
    "chunk_gated_delta_rule",
    "chunk_gdn",
    "chunk_kda",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_kda",
    "l2_norm",
    "l2norm",
    "prepare_chunk_indices",
    "prepare_chunk_offsets",
    "prepare_lens",
    "prepare_position_ids",
    "prepare_sequence_ids",
    "prepare_token_indices",
]


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    chunk_indices: torch.Tensor | None = None,
    cp_context: Any = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    chunk_size: int = 64,
    transpose_state_layout: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gated delta rule with fla's arguments; returns o (batch, tokens, HV, V) and the final states in float32, or None.

    The states after the last tokens are returned with `output_final_state`. Arguments are those of `hipkittens.gated_delta_rule`. Without g
    there is no decay, without beta it is 1. With state_v_first (formerly transpose_state_layout) states are (sequences, HV, V, K).
    cu_seqlens_cpu and chunk_indices repeat cu_seqlens and are not read. Raises NotImplementedError for cp_context, and for a chunk_size
    other than 64; results do not depend on it beyond rounding.
    """
    where = "hipkittens.fla.chunk_gated_delta_rule"
    if cp_context is not None:
        raise NotImplementedError(
            f"{where}: cp_context is given; sequences are not split over ranks; pass whole sequences"
        )
    if chunk_size != 64:
        raise NotImplementedError(f"{where}: chunk_size is {chunk_size}; allowed: 64")
    if transpose_state_layout is not None:
        state_v_first = transpose_state_layout
    return _called(
        where, q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens, use_gate_in_kernel, A_log, dt_bias,
    )  # fmt: skip


chunk_gdn = chunk_gated_delta_rule


def fused_recurrent_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
    gv: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`chunk_gated_delta_rule` with the argument order of fla's recurrent one; unlike fla's, with derivatives.

    Raises NotImplementedError for per-channel decays, gk and gv.
    """
    where = "hipkittens.fla.fused_recurrent_gated_delta_rule"
    for name, value in (("gk", gk), ("gv", gv)):
        if value is not None:
            raise NotImplementedError(
                f"{where}: {name} is given; pass g, one decay a head, or call fused_recurrent_kda with decays of each channel of keys"
            )
    return _called(
        where, q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens, use_gate_in_kernel, A_log, dt_bias,
    )  # fmt: skip


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    cp_context: Any = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    *,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    chunk_size: int = 64,
    transpose_state_layout: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Kimi delta attention with fla's arguments; returns o (batch, tokens, HV, V) and the final states in float32, or None.

    The states after the last tokens are returned with `output_final_state`. Arguments are those of `hipkittens.kimi_delta_attention`;
    dt_bias is (HV * K). As in fla, with a lower_bound the gate is lower_bound sigmoid(exp(A_log) (g + dt_bias)), where A_log may be
    omitted. Results do not depend on safe_gate, disable_recompute, use_graph and chunk_size; cu_seqlens_cpu repeats cu_seqlens and is not
    read. Raises NotImplementedError for cp_context and return_intermediate_states, and ValueError for tensors that require gradients.
    """
    where = "hipkittens.fla.chunk_kda"
    if cp_context is not None:
        raise NotImplementedError(
            f"{where}: cp_context is given; sequences are not split over ranks; pass whole sequences"
        )
    if return_intermediate_states:
        raise NotImplementedError(
            f"{where}: return_intermediate_states is True; states inside a sequence are not kept; pass sequences that end there"
        )
    if chunk_size not in (32, 64):
        raise ValueError(f"{where}: chunk_size is {chunk_size}; allowed: 32, 64")
    if safe_gate and use_gate_in_kernel and not (lower_bound is not None and -5.0 <= lower_bound < 0.0):
        raise ValueError(
            f"{where}: safe_gate is True and lower_bound {lower_bound}; it must be in [-5, 0) where the gate is in the kernel"
        )
    if max_num_seqs is not None and (cu_seqlens is None or cu_seqlens.numel() != max_num_seqs + 1):
        raise ValueError(
            f"{where}: max_num_seqs is {max_num_seqs}; cu_seqlens needs {max_num_seqs + 1} elements, of which the last ones may be equal"
        )
    if transpose_state_layout is not None:
        state_v_first = transpose_state_layout
    return _kda(
        where, q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
        use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound, state_v_first, cu_seqlens, A_log, dt_bias,
    )  # fmt: skip


def fused_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    *,
    transpose_state_layout: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`chunk_kda` with the argument order of fla's recurrent one."""
    if transpose_state_layout is not None:
        state_v_first = transpose_state_layout
    return _kda(
        "hipkittens.fla.fused_recurrent_kda", q, k, v, g, beta, scale, initial_state, output_final_state,
        use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound,
        state_v_first, cu_seqlens, A_log, dt_bias,
    )  # fmt: skip


def l2norm(x: torch.Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """L2-normalize over the last dimension: x / sqrt(sum of squares + eps), in float32, rounded to output_dtype (x's by default).

    x is (..., D), bfloat16, float16 or float32, with a derivative. It is computed as x / sqrt(mean of squares + eps / D) with a weight of
    1 / sqrt(D) by `hipkittens.rms_norm`, whose errors are raised for arguments that no kernel supports.
    """
    where = "hipkittens.fla.l2norm"
    check_tensor(where, "x", x)
    size = x.shape[-1] if x.dim() else 0
    if not size:
        raise ValueError(f"{where}: x has shape {tuple(x.shape)}; it needs a last dimension with elements")
    if not number(where, "eps", eps) >= 0.0:
        raise ValueError(f"{where}: eps is {eps}; it must be at least 0")
    if output_dtype is not None and output_dtype != x.dtype:
        return l2norm(x.float(), eps).to(output_dtype)
    weight = torch.full((size,), size**-0.5, dtype=torch.float32, device=x.device)
    return rms_norm(x, weight, eps / size)


l2_norm = l2norm


def _called(
    where, q, k, v, g, beta, scale, initial_state, output_final_state, l2norm, beta_logits, allow_neg_eigval,
    state_v_first, cu_seqlens, use_gate, A_log, dt_bias,
):  # fmt: skip
    if use_gate:
        if g is None or A_log is None:
            raise ValueError(f"{where}: use_gate_in_kernel is True and g or A_log is None; pass both")
        if dt_bias is None:
            dt_bias = torch.zeros_like(A_log)
    elif A_log is not None or dt_bias is not None:
        raise ValueError(f"{where}: A_log or dt_bias is given and use_gate_in_kernel is False; pass True")
    if g is None:
        g = torch.zeros(v.shape[:3], dtype=torch.float32, device=v.device)
    if beta is None:
        beta = torch.ones(v.shape[:3], dtype=torch.float32, device=v.device)
    if beta_logits:
        beta = beta.float().sigmoid()
    if allow_neg_eigval:
        beta = 2.0 * beta
    out, state = gated_delta_rule(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, return_state=True, l2norm=l2norm,
        A_log=A_log, dt_bias=dt_bias, cu_seqlens=cu_seqlens, state_layout="vk" if state_v_first else "kv",
    )  # fmt: skip
    return out, state if output_final_state else None


def _kda(
    where, q, k, v, g, beta, scale, initial_state, output_final_state, l2norm, use_gate, beta_logits, allow_neg_eigval,
    lower_bound, state_v_first, cu_seqlens, A_log, dt_bias,
):  # fmt: skip
    if use_gate:
        A_log, dt_bias = _kda_gate(where, g, A_log, dt_bias, lower_bound)
    else:
        for name, value in (("A_log", A_log), ("dt_bias", dt_bias), ("lower_bound", lower_bound)):
            if value is not None:
                raise ValueError(f"{where}: {name} is given and use_gate_in_kernel is False; pass True")
    if allow_neg_eigval:
        if not beta_logits:
            raise ValueError(
                f"{where}: allow_neg_eigval is True and use_beta_sigmoid_in_kernel False; pass logits of beta and True, or twice beta"
            )
        beta, beta_logits = 2.0 * beta.float().sigmoid(), False
    out, state = kimi_delta_attention(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, return_state=True, l2norm=l2norm, A_log=A_log,
        dt_bias=dt_bias, lower_bound=lower_bound, beta_logits=beta_logits, cu_seqlens=cu_seqlens,
        state_layout="vk" if state_v_first else "kv",
    )  # fmt: skip
    return out, state if output_final_state else None


def _kda_gate(where, g, A_log, dt_bias, lower_bound):
    """A_log (HV) and dt_bias (HV, K); fla accepts any shapes with so many elements."""
    heads, key = g.shape[-2:]
    if A_log is None:
        if lower_bound is None:
            raise ValueError(
                f"{where}: use_gate_in_kernel is True and A_log and lower_bound are None; pass one of them"
            )
        A_log = torch.zeros(heads, dtype=torch.float32, device=g.device)
    if dt_bias is None:
        dt_bias = torch.zeros(heads, key, dtype=torch.float32, device=g.device)
    for name, value, count in (("A_log", A_log, heads), ("dt_bias", dt_bias, heads * key)):
        if value.numel() != count:
            raise ValueError(f"{where}: {name} has {value.numel()} elements; it needs {count}")
    return A_log.reshape(heads), dt_bias.reshape(heads, key)
