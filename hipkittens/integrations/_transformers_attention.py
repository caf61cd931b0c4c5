# SPDX-License-Identifier: MIT
"""The function behind attn_implementation="hipkittens"."""

from __future__ import annotations

from typing import Any

import torch

from ..attention import attention, attention_varlen
from . import _transformers_masks as masks

WHERE = masks.WHERE
# What some models pass to change the scores or the weights; each is refused by its name.
_WITHOUT_KERNEL = {
    "head_mask": "a mask of heads",
    "position_bias": "a bias of the scores",
    "indices": "attention to chosen keys",
    "block_indices": "attention to chosen blocks",
}


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    position_ids: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """hipkittens.attention as Transformers calls it: query (B, H, N, D), key (B, H_k, N_k, D), value (B, H_k, N_k, D_v),
    bfloat16 or float16 (float32 only under torch.autocast); returns ((B, N, H, D_v), None).

    attention_mask  what `key_mask` made; (batch, keys) of 0 and 1; or (batch, 1, queries or 1, keys) that is causal, a
                    sliding window, or the same for all queries: then it alone says what is hidden, as in SDPA
    sliding_window  W: query i sees keys i - W + 1 to i, and without a causal mask to i + W - 1
    position_ids    positions that begin again mark packed sequences, where there is no mask
    cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k  packed sequences, all four or none
    is_causal       default: module.is_causal
    softcap         of the scaled scores (Gemma 2); None or 0: none
    s_aux           the sinks of heads (GPT-OSS), (H,)

    NotImplementedError names what has no kernel: head_mask, position_bias, output_attentions.
    """
    _refuse(options)
    length, keys = query.shape[2], key.shape[2]
    if is_causal is None:
        config = getattr(module, "config", None)
        is_causal = getattr(module, "is_causal", True) and getattr(config, "is_causal", True)
    is_causal = bool(is_causal)
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    given = {
        "cu_seq_lens_q": cu_seq_lens_q,
        "cu_seq_lens_k": cu_seq_lens_k,
        "max_length_q": max_length_q,
        "max_length_k": max_length_k,
    }
    named = [name for name, what in given.items() if what is not None]
    if 0 < len(named) < 4:
        raise ValueError(
            f"{WHERE}: {', '.join(named)} is given without {', '.join(given.keys() - set(named))}; pass all four or none"
        )
    if named and attention_mask is not None and attention_mask.dtype != torch.int32:
        raise ValueError(f"{WHERE}: attention_mask and cu_seq_lens_q are both given; pass one of them")

    windowed = sliding_window is not None
    rows: Any = None
    if named:
        rows = masks.Packed(cu_seq_lens_q.to(torch.int32))
    elif attention_mask is not None and attention_mask.dim() == 4:
        if attention_mask.dtype == torch.int32:
            rows = _packed(attention_mask, lambda ids: masks.sequences_of_ids(ids[:, 0, 0]))
        elif attention_mask.dtype == torch.bool and attention_mask.shape[1:3] == (1, 1):
            # `key_mask` adds columns for the queries; a mask without them hides the same keys from each.
            is_causal = is_causal and attention_mask.shape[3] == length + keys
            rows = _rows(attention_mask, lambda: attention_mask[:, 0, 0], length, keys, is_causal)
        else:
            found = masks.once(
                attention_mask,
                f"dense {length} {keys} {sliding_window}",
                lambda: masks.dense(attention_mask, length, keys, sliding_window),
            )
            is_causal, windowed, rows = found.causal, found.windowed, found.rows
    elif attention_mask is not None:
        rows = _rows(attention_mask, lambda: attention_mask, length, keys, is_causal)
    elif position_ids is not None and position_ids.dim() == 2 and 1 < length == keys == position_ids.shape[1]:
        rows = _packed(position_ids, lambda ids: masks.sequences_of_positions(ids, query.shape[0]))

    reach = sliding_window - 1 if windowed else -1
    settings = {
        "causal": is_causal,
        "scale": scaling,
        "window_size": (reach, -1 if is_causal else reach),
        "dropout_p": dropout,
        "softcap": softcap or 0.0,
        "sinks": s_aux,
    }
    if rows is None:
        return attention(query, key, value, **settings), None
    if isinstance(rows, masks.Prefix):
        return attention(query, key[:, : rows.keys], value[:, : rows.keys], **settings), None
    batch = query.shape[0]
    query, key, value = (tensor.flatten(0, 1) for tensor in (query, key, value))
    if isinstance(rows, masks.Packed):
        ends_k = cu_seq_lens_k.to(torch.int32) if named else rows.cu_seqlens
        longest = (int(max_length_q), int(max_length_k)) if named else (length, keys)
        out = attention_varlen(query, key, value, rows.cu_seqlens, ends_k, *longest, **settings)
        return out.unflatten(0, (batch, length)), None
    if rows.order_q is not None:
        query = query.index_select(0, rows.order_q)
    key, value = (tensor.index_select(0, rows.order_k) for tensor in (key, value))
    out = attention_varlen(query, key, value, rows.cu_seqlens_q, rows.cu_seqlens_k, length, keys, **settings)
    if rows.back_q is not None:
        out = out.index_select(0, rows.back_q)
    return out.unflatten(0, (batch, length)), None


def _rows(mask: torch.Tensor, of_two_dimensions: Any, length: int, keys: int, causal: bool) -> Any:
    return masks.once(
        mask,
        f"rows {length} {keys} {causal}",
        lambda: masks.rows_of_mask(of_two_dimensions(), length, keys, causal),
    )


def _packed(ids: torch.Tensor, find: Any) -> masks.Packed | None:
    """Where packed sequences lie. A compiled model cannot look, so there a device-side check refuses them."""
    if not torch.compiler.is_compiling():
        return masks.once(ids, "packed", lambda: find(ids))
    again = ids[..., 1:] != ids[..., :-1] if ids.dtype == torch.int32 else ids[..., 1:] <= ids[..., :-1]
    torch._assert_async(
        ~again.any(),
        f"{WHERE}: position_ids begin again under torch.compile; pass cu_seq_lens_q, cu_seq_lens_k, max_length_q and "
        "max_length_k too (DataCollatorWithFlattening(return_flash_attn_kwargs=True) gives them)",
    )
    return None


def _refuse(options: dict[str, Any]) -> None:
    for name, what in _WITHOUT_KERNEL.items():
        if options.get(name) is not None:
            raise NotImplementedError(
                f'{WHERE}: {name} is given, and no kernel has {what}. Use attn_implementation="eager", or a model '
                "configured without it"
            )
    if options.get("output_attentions"):
        raise NotImplementedError(
            f"{WHERE}: output_attentions is True; the kernels never hold the weights. Use "
            'attn_implementation="eager"'
        )
