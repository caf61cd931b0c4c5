# SPDX-License-Identifier: MIT
"""What the kernels need from Transformers' masks: which keys are masked, and where packed sequences begin.

Two forms reach the attention function, as the tensors that `key_mask` returns:

bool (batch, 1, 1, keys)       True where a key takes part; if the mask is causal, followed by `queries` such columns for the
                               queries: the last query that takes part is aligned with the last key that does
int32 (batch, 1, 1, tokens)    the sequence that each token belongs to; sequences are packed

Patterns without a kernel become Transformers' own mask for PyTorch's attention, bool (batch, 1, queries, keys).

The masks have four dimensions because `generate` passes the mask that it got for a static cache to the model, which converts it once more
unless it has four. Nothing of size queries x keys is created, and nothing is copied to the host more than once per forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import masking_utils

WHERE = 'attn_implementation="hipkittens"'
# Additive masks use the smallest number of some dtype; the largest of those is float16's.
HIDDEN_AT_MOST = torch.finfo(torch.float16).min


def _code_of_inner(name: str, *arguments: Any) -> Any:
    make = getattr(masking_utils, name, None)
    return None if make is None else make(*arguments).__code__


_BARE = tuple(
    function
    for function in (
        getattr(masking_utils, name, None) for name in ("causal_mask_function", "bidirectional_mask_function")
    )
    if function is not None
)
_AND = _code_of_inner("and_masks", *_BARE[:1])
_WINDOWS = (
    _code_of_inner("sliding_window_overlay", 1),
    _code_of_inner("sliding_window_bidirectional_overlay", 1),
)
_PACKED = _code_of_inner("packed_sequence_mask_function", None)
_REMAPPED = _code_of_inner("remap_positions_for_packed_sequence", None, None)


class WithoutKernel(NotImplementedError):
    """Why attention falls back to PyTorch. The text contains no sizes, so that it is logged once."""


@dataclass
class _Meaning:
    causal: bool = False
    sequences: torch.Tensor | None = None


def _understand(mask_function: Callable, meaning: _Meaning) -> None:
    """Adds what mask_function expresses to `meaning`; raises WithoutKernel if the kernels cannot express it."""
    if any(mask_function is bare for bare in _BARE):
        meaning.causal |= mask_function is masking_utils.causal_mask_function
    else:
        _understand_closure(mask_function, meaning)


@torch.compiler.disable  # torch.compile cannot look into closures
def _understand_closure(mask_function: Callable, meaning: _Meaning) -> None:
    code = getattr(mask_function, "__code__", None)
    if code is not None and code in _WINDOWS:
        return  # the attention function is told the window
    if code is not None and code in (_AND, _PACKED, _REMAPPED):
        held = dict(
            zip(code.co_freevars, (cell.cell_contents for cell in mask_function.__closure__), strict=True)
        )
        for part in held.get("mask_functions", ()):
            _understand(part, meaning)
        if code is _REMAPPED:
            _understand(held["mask_function"], meaning)
        if code is _PACKED:
            meaning.sequences = held["packed_sequence_mask"]
        return
    raise WithoutKernel(
        f"the model's mask has the pattern {getattr(mask_function, '__qualname__', mask_function)!r}; kernels have causal, bidirectional "
        "and sliding-window masks, padding and packed sequences"
    )


def key_mask(
    batch_size: int,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Callable = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    q_length: int | None = None,
    q_offset: int | torch.Tensor = 0,
    cache_position: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor | None:
    """The mask that AttentionMaskInterface passes to the attention function; None if nothing is masked.

    Transformers 4 gives the positions of the queries by cache_position, Transformers 5 by q_length and q_offset. Keys of a static cache
    that have not been written yet are masked. For patterns without a kernel (chunks, blocks, a model's own functions) the mask is that of
    Transformers' "sdpa"; under torch.compile they raise NotImplementedError.
    """
    compiling = torch.compiler.is_compiling()
    meaning = _Meaning()
    try:
        _understand(mask_function, meaning)
    except WithoutKernel as reason:
        if compiling:
            raise NotImplementedError(
                f'{WHERE}: {reason}, and none is looked for under torch.compile. Use attn_implementation="sdpa"'
            ) from None
        place = {"cache_position": cache_position}
        if cache_position is None:
            place = {"q_length": q_length, "q_offset": q_offset}
        return masking_utils.sdpa_mask(
            batch_size=batch_size,
            kv_length=kv_length,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=None if attention_mask is None else attention_mask.bool(),
            **place,
            **options | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
        )
    if meaning.sequences is not None:
        # Transformers looks for packed sequences only where there is neither a mask nor a cache.
        sequences = meaning.sequences
        if not compiling and not bool((sequences[:, -1:] != sequences[:, :1]).any()):
            return None
        return sequences.to(torch.int32)[:, None, None]
    if cache_position is not None:
        q_length, q_offset = cache_position.shape[0], cache_position[0]
    device = attention_mask.device if attention_mask is not None else _device(cache_position, q_offset)
    place = torch.arange(kv_length, device=device) + kv_offset
    # Keys of another sequence (cross-attention) are all written, whatever the position of the queries.
    if not meaning.causal or (kv_offset == 0 and kv_length == q_length):
        written = None
    elif isinstance(q_offset, torch.Tensor):
        written = place < q_offset.to(device) + q_length
    else:
        written = None if kv_offset + kv_length <= q_offset + q_length else place < q_offset + q_length
    if attention_mask is None and written is None:
        return None
    if attention_mask is None:
        keys = written.expand(batch_size, kv_length)
        queries = keys.new_ones(1, 1).expand(batch_size, q_length)
    else:
        # Past its end there are keys of a static cache that have not been written.
        real = pad(attention_mask.bool(), (0, max(0, kv_offset + kv_length - attention_mask.shape[-1])))
        keys = real[:, kv_offset : kv_offset + kv_length]
        keys = keys if written is None else keys & written
        queries = attention_mask.bool()[:, -q_length:] if meaning.causal else None
    if not compiling and bool(keys.all()) and (queries is None or bool(queries.all())):
        return None
    return (torch.cat((queries, keys), 1) if meaning.causal else keys)[:, None, None]


def _device(cache_position: torch.Tensor | None, q_offset: int | torch.Tensor) -> torch.device | None:
    for value in (cache_position, q_offset):
        if isinstance(value, torch.Tensor):
            return value.device
    return None


@dataclass(frozen=True)
class Prefix:
    """The first `keys` keys of every sequence, and no others."""

    keys: int


@dataclass(frozen=True)
class Sorted:
    """Rows in an order in which those that take part come first, sequence by sequence, as attention_varlen requires.

    The others follow as sequences of queries without keys and of keys without queries, so no size depends on the mask.
    """

    order_q: torch.Tensor | None  # None: all queries take part
    back_q: torch.Tensor | None
    order_k: torch.Tensor
    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor


@dataclass(frozen=True)
class Packed:
    """Packed sequences: where they begin and end, int32."""

    cu_seqlens: torch.Tensor


@dataclass(frozen=True)
class Dense:
    """The interpretation of a mask of queries x keys."""

    causal: bool
    windowed: bool
    rows: Prefix | Sorted


def once(tensor: torch.Tensor, name: str, compute: Callable[[], Any]) -> Any:
    """compute(), cached on the tensor: every layer of a forward pass gets the same mask and position tensors."""
    if torch.compiler.is_compiling():
        return compute()
    held = tensor.__dict__.setdefault("_hipkittens", {})
    if name not in held:
        held[name] = compute()
    return held[name]


def rows_of_mask(mask: torch.Tensor, length: int, keys: int, causal: bool) -> Prefix | Sorted:
    """The rows that take part, for a bool (or 0 and 1) mask of (batch, keys) or (batch, length + keys)."""
    if mask.shape[1] not in (keys, length + keys):
        raise ValueError(
            f"{WHERE}: attention_mask has shape {tuple(mask.shape)} for {length} queries and {keys} keys; it must be "
            "(batch, keys)"
        )
    mask = mask.bool()
    kept_k = mask[:, -keys:]
    kept_q = (
        mask[:, :length] if causal else None
    )  # of a mask of keys alone: the last ones are the queries, see below
    if causal and mask.shape[1] == keys:
        kept_q = mask[:, -length:]
    if not torch.compiler.is_compiling():
        end = int(kept_k.any(0).nonzero().max()) + 1 if bool(kept_k.any()) else 0
        if end and bool(kept_k[:, :end].all()) and (kept_q is None or bool(kept_q.all())):
            return Prefix(end)
    return _sorted_rows(kept_q, kept_k, length)


def _sorted_rows(kept_q: torch.Tensor | None, kept_k: torch.Tensor, length: int) -> Sorted:
    batch, keys = kept_k.shape
    first = torch.arange(batch, device=kept_k.device)
    order_k, seen_k = _kept_first(kept_k, first)
    begin_q, begin_k = first * length, first * keys
    if kept_q is None:
        order_q = back_q = None
        ends_q = torch.stack((begin_q + length, begin_q + length), 1)
        ends_k = torch.stack((begin_k + seen_k, begin_k + keys), 1)
    else:
        order_q, seen_q = _kept_first(kept_q, first)
        back_q = order_q.argsort()
        ends_q = torch.stack((begin_q + seen_q, begin_q + length, begin_q + length), 1)
        ends_k = torch.stack((begin_k + seen_k, begin_k + seen_k, begin_k + keys), 1)
    cu_seqlens = [pad(ends.flatten(), (1, 0)).to(torch.int32) for ends in (ends_q, ends_k)]
    return Sorted(order_q, back_q, order_k, *cu_seqlens)


def _kept_first(kept: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    order = (~kept).to(torch.uint8).argsort(dim=1, stable=True) + first[:, None] * kept.shape[1]
    return order.flatten(), kept.sum(1)


def sequences_of_ids(ids: torch.Tensor) -> Packed:
    """Where the sequence number changes in (batch, tokens); every row of the batch begins a new sequence."""
    begins = pad(ids[:, 1:] != ids[:, :-1], (1, 0), value=True)
    return _packed(begins)


def sequences_of_positions(position_ids: torch.Tensor, batch: int) -> Packed | None:
    """Where positions (batch or 1, tokens) restart, None if they never do."""
    again = pad(position_ids[:, 1:] <= position_ids[:, :-1], (1, 0))
    if not bool(again.any()):
        return None
    again[:, 0] = True
    return _packed(again.expand(batch, again.shape[1]))


def _packed(begins: torch.Tensor) -> Packed:
    flat = begins.flatten()
    return Packed(pad(flat.nonzero().flatten(), (0, 1), value=flat.shape[0]).to(torch.int32))


def dense(mask: torch.Tensor, length: int, keys: int, window: int | None) -> Dense | WithoutKernel:
    """Interprets a mask of (batch, 1, queries or 1, keys), boolean (True: takes part) or added to the scores.

    Every element is read. The result is WithoutKernel unless the mask hides the same keys from all queries, in addition to those past a
    diagonal or outside the window.
    """
    if torch.compiler.is_compiling():
        raise NotImplementedError(
            f"{WHERE}: attention_mask has shape {tuple(mask.shape)} under torch.compile; its elements have to be looked at. "
            "Pass the mask of keys, (batch, keys)"
        )
    if mask.shape[1] != 1:
        return WithoutKernel("attention_mask has a mask of its own for each head")
    if mask.shape[2] not in (1, length):
        raise ValueError(
            f"{WHERE}: attention_mask has shape {tuple(mask.shape)} for {length} queries; its third size must be 1 or that"
        )
    mask = mask[:, 0, :, :keys]
    if mask.dtype == torch.bool:
        visible = mask
    elif not mask.is_floating_point():
        visible = mask != 0
    else:
        visible = mask == 0
        if not bool((visible | (mask <= HIDDEN_AT_MOST)).all()):
            return WithoutKernel(
                f"attention_mask adds values other than 0 and the smallest {mask.dtype} to the scores"
            )
    visible = visible.expand(-1, length, -1)
    kept_k = visible.any(1)
    behind = torch.arange(keys, device=mask.device) - torch.arange(length, device=mask.device)[:, None]
    behind = behind - (keys - length)  # how far a key is after its query
    for causal in (False, True):
        for windowed in (False, True) if window is not None else (False,):
            shape = torch.ones_like(behind, dtype=torch.bool)
            if causal:
                shape = behind <= 0
            if windowed:
                shape = shape & (behind.abs() < window)
            kept_q = (
                None if not causal and not windowed else pad(kept_k, (max(0, length - keys), 0))[:, -length:]
            )
            rows = slice(None) if kept_q is None else kept_q
            if torch.equal(visible[rows], (kept_k[:, None] & shape)[rows]):
                return Dense(causal, windowed, rows_of_mask(kept_k, length, keys, kept_q is not None))
    return WithoutKernel("attention_mask is neither causal nor the same for all queries")
