# SPDX-License-Identifier: MIT
"""Rotary position embeddings, of one tensor or of queries and keys in one launch."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_flag, check_tensor
from ._call import call

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LAYOUTS = ("bnhd", "bhnd")


@_backend.interruptible
def rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    positions: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    offset: int = 0,
    layout: str = "bnhd",
    inplace: bool = False,
) -> torch.Tensor:
    """x with its first 2 * cos.shape[1] features turned pairwise by the angle of each token.

    x          (batch, tokens, heads, features), with layout="bhnd" (batch, heads, tokens, features), any strides with
               unit last one. Three dimensions, (tokens, heads, features) or (heads, tokens, features), are a batch of
               one: packed sequences, with cu_seqlens or with positions that begin again at 0.
    cos, sin   (rows, pairs), float32, bfloat16 or float16; no gradient
    interleaved  pairs are features (2i, 2i + 1); otherwise (i, i + pairs)
    positions  int32 or int64, (tokens,) or (batch, tokens): the row of each token. Otherwise it is offset + token.
    cu_seqlens int32 or int64, (sequences + 1,), beginning with 0 and ending with the number of tokens: where each packed
               sequence begins. Positions begin again there, at offset. Its values are not looked at on the host.
    inplace    x itself is written and returned; not for tensors that need a gradient

    x is bfloat16, float16 or float32; the result has its shape and dtype. Angles are applied in float32 and rounded once.
    A position without a row raises ValueError on a CPU, and gives NaN on a GPU. Raises TypeError or ValueError, before
    anything is launched, for what has no kernel.
    """
    (x_out,) = _rotate(
        "rotary", ("x",), (x,), cos, sin, interleaved, positions, cu_seqlens, offset, layout, inplace
    )
    return x_out


@_backend.interruptible
def rotary_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    positions: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    offset: int = 0,
    layout: str = "bnhd",
    inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """rotary of q and k, which may have different numbers of heads, in one launch.

    q and k have equal batch, tokens and features. cos, sin, interleaved, positions, cu_seqlens, offset, layout, inplace and
    what is raised: as in `rotary`.
    """
    q_out, k_out = _rotate(
        "rotary_qk", ("q", "k"), (q, k), cos, sin, interleaved, positions, cu_seqlens, offset, layout, inplace
    )
    return q_out, k_out


def _rotate(function, names, tensors, cos, sin, interleaved, positions, cu_seqlens, offset, layout, inplace):
    _check(function, names, tensors, cos, sin, interleaved, positions, cu_seqlens, offset, layout, inplace)
    heads_first = layout == "bhnd"
    whole = tuple(value.unsqueeze(0) if value.dim() == 3 else value for value in tensors)
    tokens = whole[0].shape[2 if heads_first else 1]
    if cu_seqlens is not None:
        positions, offset = _packed_positions(cu_seqlens, tokens, offset), 0
    if positions is not None:
        positions = positions.expand(whole[0].shape[0], tokens)
    if _backend.uses_torch():
        results = tuple(
            _in_torch(value, cos, sin, interleaved, positions, offset, heads_first) for value in whole
        )
        if inplace:
            for value, result in zip(whole, results, strict=True):
                value.copy_(result)
    else:
        options = positions, offset, interleaved, heads_first, False
        results = call(function + "_" * inplace, *whole, cos, sin, *options)
        if inplace:
            for value in tensors:
                torch.autograd.graph.increment_version(value)
    if inplace:
        return tensors
    if len(tensors) == 1 and isinstance(results, torch.Tensor):
        results = (results,)
    return tuple(
        result.squeeze(0) if value.dim() == 3 else result
        for value, result in zip(tensors, results, strict=True)
    )


def _packed_positions(cu_seqlens: torch.Tensor, tokens: int, offset: int) -> torch.Tensor:
    """The place of each token in its own sequence, plus offset; computed where cu_seqlens is, so nothing waits for it."""
    token = torch.arange(tokens, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens, token, right=True) - 1
    return token - cu_seqlens[sequence] + offset


def _in_torch(x, cos, sin, interleaved, positions, offset, heads_first):
    if positions is None:
        tokens = x.shape[2 if heads_first else 1]
        cos, sin = cos[offset : offset + tokens], sin[offset : offset + tokens]
    else:
        cos, sin = cos[positions.long()], sin[positions.long()]
    head_axis = -3 if heads_first else -2
    cos, sin = cos.float().unsqueeze(head_axis), sin.float().unsqueeze(head_axis)
    pairs = cos.shape[-1]
    turned, rest = x[..., : 2 * pairs].float(), x[..., 2 * pairs :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    else:
        a, b = turned[..., :pairs], turned[..., pairs:]
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def _check(
    function, names, tensors, cos, sin, interleaved, positions, cu_seqlens, offset, layout, inplace
) -> None:
    where = f"hipkittens.{function}"
    named = [*zip(names, tensors, strict=True), ("cos", cos), ("sin", sin)]
    first = tensors[0]
    for name, value in named:
        check_tensor(where, name, value)
        check_dtype_and_device(where, name, value, DTYPES, names[0], first)
    check_flag(where, "interleaved", interleaved)
    if isinstance(offset, bool) or not isinstance(offset, (int, torch.SymInt)):
        raise TypeError(f"{where}: offset is {offset!r}; it must be an int (positions takes a tensor)")
    if layout not in LAYOUTS:
        raise ValueError(f"{where}: layout is {layout!r}; allowed: bnhd, bhnd")
    for name, value in named[:-2]:
        if value.dim() not in (3, 4) or value.dim() != first.dim():
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)}; it needs 4 dimensions, or 3 for packed sequences"
            )
        if value.dtype != first.dtype:
            raise TypeError(f"{where}: q is {first.dtype} and k is {value.dtype}; convert one to the other")
    token_axis = -2 if layout == "bhnd" else -3
    tokens, features = first.shape[token_axis], first.shape[-1]
    batch = first.shape[0] if first.dim() == 4 else 1
    for _, value in named[1:-2]:
        same = (value.shape[0] if value.dim() == 4 else 1, value.shape[token_axis], value.shape[-1])
        if same != (batch, tokens, features):
            raise ValueError(
                f"{where}: q has shape {tuple(first.shape)} and k {tuple(value.shape)}; only their heads may differ"
            )
    if cos.dim() != 2 or cos.shape != sin.shape or cos.dtype != sin.dtype:
        raise ValueError(
            f"{where}: cos is {tuple(cos.shape)} {cos.dtype} and sin {tuple(sin.shape)} {sin.dtype}; both must be "
            "(rows, pairs) of one dtype"
        )
    if not 1 <= cos.shape[1] <= features // 2:
        raise ValueError(
            f"{where}: cos has {cos.shape[1]} columns and {names[0]} {features} features; 1 to {features // 2} are allowed"
        )
    if torch.is_grad_enabled():
        for name, value in named[-2:]:
            if value.requires_grad:
                raise ValueError(f"{where}: {name} requires a gradient and gets none; pass {name}.detach()")
        if inplace and any(value.requires_grad for value in tensors):
            raise ValueError(f"{where}: inplace=True records no gradient; use it under torch.no_grad() only")
    if cu_seqlens is not None:
        _check_packed(where, names[0], first, batch, positions, cu_seqlens, offset)
    elif positions is None:
        if offset < 0 or offset + tokens > cos.shape[0]:
            raise ValueError(
                f"{where}: offset {offset} and {tokens} tokens need {offset + tokens} rows; cos and sin have {cos.shape[0]}"
            )
    else:
        if not isinstance(positions, torch.Tensor) or positions.dtype not in (torch.int32, torch.int64):
            kind = positions.dtype if isinstance(positions, torch.Tensor) else type(positions).__name__
            raise TypeError(f"{where}: positions is {kind}; allowed: a tensor of torch.int32 or torch.int64")
        if offset != 0:
            raise ValueError(f"{where}: positions and offset {offset} are both given; add it to positions")
        if tuple(positions.shape) not in ((tokens,), (batch, tokens), (1, tokens)):
            raise ValueError(
                f"{where}: positions has shape {tuple(positions.shape)}; it must be ({tokens},) or ({batch}, {tokens})"
            )
        if positions.device != first.device:
            raise ValueError(
                f"{where}: positions is on {positions.device} and {names[0]} on {first.device}; move one to the other"
            )
    if inplace:
        for name, value in named[:-2]:
            if value.shape[-1] > 1 and value.stride(-1) != 1:
                raise ValueError(
                    f"{where}: inplace=True needs unit last stride; {name} has {value.stride(-1)}"
                )
            if any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True)):
                raise ValueError(f"{where}: inplace=True on {name}, which is expanded; clone it first")
    _backend.check_device(where, names[0], first)


def _check_packed(where, name, first, batch, positions, cu_seqlens, offset) -> None:
    if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        kind = cu_seqlens.dtype if isinstance(cu_seqlens, torch.Tensor) else type(cu_seqlens).__name__
        raise TypeError(f"{where}: cu_seqlens is {kind}; allowed: a tensor of torch.int32 or torch.int64")
    if positions is not None:
        raise ValueError(
            f"{where}: positions and cu_seqlens are both given; each says where every token stands"
        )
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(
            f"{where}: cu_seqlens has shape {tuple(cu_seqlens.shape)}; it must be (sequences + 1,) with at least 1 sequence"
        )
    if cu_seqlens.device != first.device:
        raise ValueError(
            f"{where}: cu_seqlens is on {cu_seqlens.device} and {name} on {first.device}; move one to the other"
        )
    if batch != 1:
        raise ValueError(
            f"{where}: {name} has batch {batch}; cu_seqlens needs all sequences packed in one, (tokens, heads, features)"
        )
    if offset < 0:
        raise ValueError(f"{where}: offset is {offset}; it must not be negative")
