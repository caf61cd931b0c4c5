# SPDX-License-Identifier: MIT
"""The attention function behind attn_implementation="hipkittens"."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F

from .. import _log
from ..attention import attention, attention_varlen
from . import _transformers_masks as masks
from . import _transformers_paged as paged

WHERE = masks.WHERE
# Arguments by which some models change the scores or the weights; each is refused by name.
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
    cache: Any = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """hipkittens.attention with Transformers' calling convention: query (B, H, N, D), key (B, H_k, N_k, D), value (B, H_k, N_k, D_v),
    bfloat16 or float16 (float32 only under torch.autocast); returns ((B, N, H, D_v), None).

    attention_mask  the result of `key_mask`; (batch, keys) of 0 and 1; or (batch, 1, queries or 1, keys) that is causal, a sliding
                    window, or the same for all queries: it alone then determines what is masked, as in SDPA. With other masks, including
                    (batch, heads, queries, keys), PyTorch computes the call, and a WARNING gives the reason, once
    sliding_window  W: query i sees keys i - W + 1 to i, and without a causal mask to i + W - 1
    position_ids    positions that restart mark packed sequences, if there is no mask
    cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k  packed sequences, all four or none
    is_causal       default: module.is_causal
    softcap         of the scaled scores (Gemma 2); None or 0: none
    s_aux           the sinks of heads (GPT-OSS), (H,)
    cache           of continuous batching: a PagedAttentionCache, with read_index, write_index, max_seqlen_q and max_seqlen_k in addition
                    to cu_seq_lens_q and cu_seq_lens_k; key and value are those of new tokens, and attention_mask is ignored

    Raises NotImplementedError with the name of an argument without a kernel: head_mask, position_bias, output_attentions.
    """
    _refuse(options)
    if cache is not None:
        given = {"cu_seq_lens_q": cu_seq_lens_q, "cu_seq_lens_k": cu_seq_lens_k, **options}
        absent = [name for name in (*paged.PLACES, *paged.LENGTHS) if given.get(name) is None]
        if absent:
            raise NotImplementedError(
                f"{WHERE}: cache is given without {', '.join(absent)}; continuous batching is that of Transformers 4.57 alone"
            )
        places, lengths = ({name: given[name] for name in names} for names in (paged.PLACES, paged.LENGTHS))
        new = (each.transpose(1, 2).squeeze(0) for each in (query, key, value))
        settings = {"scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux}
        return paged.attend(module.layer_idx, *new, cache, places, lengths, sliding_window, **settings), None
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
            if isinstance(found, masks.WithoutKernel):
                _log.once(logging.WARNING, f"{WHERE} goes on to PyTorch: {found}")
                mask = attention_mask[..., :keys]
                return in_torch(query, key, value, mask, dropout, scaling, softcap, s_aux), None
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


def in_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    dropout: float,
    scale: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """The same for query (B, N, H, D), key and value under any mask (B, 1 or H, 1 or N, N_k), boolean or additive, by PyTorch operations."""
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    if mask.dtype != torch.bool:
        mask = mask.to(query.dtype) if mask.is_floating_point() else mask != 0
    if not softcap and sinks is None:
        grouped = query.shape[1] != key.shape[1]
        out = F.scaled_dot_product_attention(
            query, key, value, mask, dropout, scale=scale, enable_gqa=grouped
        )
        return out.transpose(1, 2).contiguous()
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    scores = (query @ key.mT).float() * (query.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        beside = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, beside), 3)
    weights = torch.softmax(scores, 3)[..., : key.shape[2]]
    # A query that sees no key has no weights.
    weights = F.dropout(weights.nan_to_num(0.0), dropout).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous()


def _rows(mask: torch.Tensor, of_two_dimensions: Any, length: int, keys: int, causal: bool) -> Any:
    return masks.once(
        mask,
        f"rows {length} {keys} {causal}",
        lambda: masks.rows_of_mask(of_two_dimensions(), length, keys, causal),
    )


def _packed(ids: torch.Tensor, find: Any) -> masks.Packed | None:
    """The bounds of packed sequences. A compiled model cannot inspect them, so there a device-side check refuses them."""
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
