# SPDX-License-Identifier: MIT
"""Attention of new tokens to a cache and to each other by AITER's names, where the new keys are not in the cache."""

from __future__ import annotations

from typing import Any

import torch

from .. import attention_merge, attention_paged
from ..attention import attention_varlen
from ._results import check_place, put, refuse


def extend_attention_fwd(
    q_extend: torch.Tensor,
    k_extend: torch.Tensor,
    v_extend: torch.Tensor,
    o_extend: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    custom_mask: torch.Tensor | None,
    is_causal: bool,
    mask_indptr: torch.Tensor | None,
    max_len_extend: int,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    skip_prefix_custom_mask: bool = True,
    config: dict[str, Any] | None = None,
) -> None:
    """hipkittens.attention_paged of q_extend [tokens, heads, D] to k_buffer and v_buffer [rows, key heads, D], attention_varlen to k_extend
    and v_extend [tokens, key heads, D], and attention_merge of both, into o_extend.

    Sequence b has tokens qo_indptr[b] .. qo_indptr[b + 1] - 1, preceded by rows kv_indices[kv_indptr[b]: kv_indptr[b + 1]] of the buffers.
    is_causal hides later tokens from earlier ones. D is 64, 128 or 256, the same for keys and values. sm_scale None or 0: 1 / sqrt(D).
    Custom masks are not supported, so mask_indptr and skip_prefix_custom_mask have no meaning; config, by which AITER sizes its own kernel,
    is ignored.
    """
    name = "extend_attention_fwd"
    if custom_mask is not None:
        refuse(name, "custom_mask", "given", "pass None, with is_causal")
    check_place(name, "o_extend", o_extend, *q_extend.shape)
    with torch.no_grad():
        starts, ends = kv_indptr.to(torch.int32), qo_indptr.to(torch.int32)
        scale = sm_scale or None
        prefix = attention_paged(
            q_extend,
            k_buffer.unsqueeze(1),
            v_buffer.unsqueeze(1),
            kv_indices.to(torch.int32),
            starts.diff(),
            ends,
            max_len_extend,
            causal=False,
            table_starts=starts[:-1],
            scale=scale,
            softcap=logit_cap,
            return_lse=True,
        )
        new = attention_varlen(
            q_extend,
            k_extend,
            v_extend,
            ends,
            ends,
            max_len_extend,
            max_len_extend,
            causal=is_causal,
            scale=scale,
            softcap=logit_cap,
            return_lse=True,
        )
        out, _ = attention_merge(*prefix, *new)
    put(name, "o_extend", o_extend, out)
