# SPDX-License-Identifier: MIT
"""HSTU attention by AITER's names."""

from __future__ import annotations

from typing import Any

import torch

from ..hstu import gradients, hstu_attention
from ._results import check_place, put


def triton_hstu_attention_fwd(
    N: int,
    alpha: float,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_offsets: torch.Tensor,
    causal: bool,
    num_targets: torch.Tensor | None,
    max_attn_len: int,
    contextual_seq_len: int,
    sort_by_length_indices: torch.Tensor | None,
    config: dict[str, Any] | None = None,
) -> torch.Tensor:
    """hipkittens.hstu_attention of q, k and v [L, heads, D], whose sequences have rows seq_offsets[b] .. seq_offsets[b + 1] - 1, with
    N as max_seqlen and alpha as the scale.

    The result is differentiable, so it also replaces AITER's _AttentionFunction. seq_offsets and num_targets may have any integer type.
    sort_by_length_indices and config, by which AITER orders and sizes its own kernel's work, are ignored.
    """
    return hstu_attention(
        q, k, v, **_options(N, alpha, seq_offsets, causal, num_targets, max_attn_len, contextual_seq_len)
    )


def triton_hstu_attention_bwd(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    seq_offsets: torch.Tensor,
    num_targets: torch.Tensor | None,
    N: int,
    alpha: float,
    max_attn_len: int,
    causal: float,
    contextual_seq_len: int,
    sort_by_length_indices: torch.Tensor | None,
    config: dict[str, Any] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of triton_hstu_attention_fwd's q, k and v from dout, that of its result, into dq, dk and dv, which it returns.

    Also correct without a causal mask, where AITER's kernel omits the rows after a block of keys. sort_by_length_indices and
    config are ignored.
    """
    name = "triton_hstu_attention_bwd"
    places = {"dq": (dq, q), "dk": (dk, k), "dv": (dv, v)}
    for argument, (into, like) in places.items():
        check_place(name, argument, into, *like.shape)
    options = _options(N, alpha, seq_offsets, causal, num_targets, max_attn_len, contextual_seq_len)
    with torch.no_grad():
        found = gradients(f"hipkittens.aiter.{name}", dout, q, k, v, **options)
    for (argument, (into, _)), gradient in zip(places.items(), found, strict=True):
        put(name, argument, into, gradient)
    return dq, dk, dv


def _options(N, alpha, seq_offsets, causal, num_targets, max_attn_len, contextual_seq_len) -> dict[str, Any]:
    return {
        "cu_seqlens": seq_offsets.to(torch.int32),
        "max_seqlen": N,
        "causal": bool(causal),
        "scale": alpha,
        "num_targets": None if num_targets is None else num_targets.to(torch.int32),
        "max_attn_len": max_attn_len,
        "contextual_seq_len": contextual_seq_len,
    }
