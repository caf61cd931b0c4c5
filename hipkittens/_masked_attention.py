# SPDX-License-Identifier: MIT
"""Attention with the masks that padding produces: a diagonal, masked keys in each sequence, or both."""

from __future__ import annotations

from typing import Any

import torch

from .attention import attention, attention_varlen


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    diagonal: int | None,
    hidden: torch.Tensor | None,
    extra: int = 0,
    **options: Any,
) -> torch.Tensor:
    """Query i sees keys up to i + diagonal (None: all) except those marked in hidden, which must not include the first `extra` keys.

    q (B, N, H, D), k and v (B, N_k, H_k, D), hidden bool (B, N_k). Options are scale and dropout_p of `attention`. Raises
    NotImplementedError for a combination of diagonal and hidden keys that no kernel supports. With both, the values of hidden are read,
    which waits for the device.
    """
    if hidden is None:
        return up_to_diagonal(q, k, v, diagonal, **options)
    if diagonal is None:
        return without_hidden(q, k, v, hidden, causal=False, **options)
    length = q.shape[1]
    if diagonal != extra or k.shape[1] != length + extra:
        raise NotImplementedError("implemented for a causal mask of as many keys as queries")
    padding, place = hidden[:, extra:], torch.arange(length, device=q.device)
    if bool((padding[:, 1:] <= padding[:, :-1]).all()):  # only first keys are hidden: aligned at the last key
        out = without_hidden(q, k, v, hidden, causal=True, **options)
        if not extra:
            return out
        # Queries in the padding see only the extra keys.
        behind = place >= padding.sum(1, keepdim=True)
        few = attention(q, k[:, :extra], v[:, :extra], **options)
        return torch.where(behind[..., None, None], out, few)
    if bool((padding[:, 1:] >= padding[:, :-1]).all()):
        # Causal queries before the padding do not see it; those in it see everything that is not padding.
        before = place < (~padding).sum(1, keepdim=True)
        out = up_to_diagonal(q, k, v, diagonal, **options)
        all_kept = without_hidden(q, k, v, hidden, causal=False, **options)
        return torch.where(before[..., None, None], out, all_kept)
    raise NotImplementedError(
        "keys in the middle of a sequence are hidden; hide first keys only or last keys only"
    )


def up_to_diagonal(q, k, v, diagonal: int | None, **options: Any) -> torch.Tensor:
    """Query i sees keys up to i + diagonal, None: all."""
    if diagonal is None:
        return attention(q, k, v, **options)
    seen = max(q.shape[1] + diagonal, 0)  # by the last query
    k, v = k[:, :seen], v[:, :seen]
    return attention(q, k, v, window_size=(-1, seen - k.shape[1]), **options)


def without_hidden(q, k, v, hidden: torch.Tensor, causal: bool, **options: Any) -> torch.Tensor:
    """Each sequence is followed by one without queries that contains its hidden keys, so no size depends on the mask."""
    batch, length, keys = q.shape[0], q.shape[1], k.shape[1]
    first = torch.arange(batch, device=q.device)
    order = hidden.to(torch.uint8).argsort(dim=1, stable=True) + first[:, None] * keys
    visible = (~hidden).sum(1)
    ends_k = torch.stack((first * keys + visible, (first + 1) * keys), 1).flatten()
    ends_q = ((first + 1) * length).repeat_interleave(2)
    cu_seqlens = [torch.nn.functional.pad(ends, (1, 0)).to(torch.int32) for ends in (ends_q, ends_k)]
    k, v = (tensor.flatten(0, 1).index_select(0, order.flatten()) for tensor in (k, v))
    out = attention_varlen(q.flatten(0, 1), k, v, *cu_seqlens, length, keys, causal=causal, **options)
    return out.unflatten(0, (batch, length))
