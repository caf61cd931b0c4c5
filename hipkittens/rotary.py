# SPDX-License-Identifier: MIT
"""Rotary position embeddings of one tensor, or of queries and keys in one launch."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_tensor
from ._call import call
from ._rotation import DTYPES, Rotation, turned_in_torch

LAYOUTS = ("bnhd", "bhnd")


@_backend.interruptible
def rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    positions: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    offset: int = 0,
    nope_first: bool = False,
    full_tables: bool = False,
    column_tables: tuple[torch.Tensor, torch.Tensor] | None = None,
    layout: str = "bnhd",
    inplace: bool = False,
) -> torch.Tensor:
    """Apply rotary position embeddings to the first 2 * pairs features of x.

    - `x`: (batch, tokens, heads, features), or with layout="bhnd" (batch, heads, tokens, features); bfloat16, float16 or float32, any
      strides with a unit last one. Three dimensions, (tokens, heads, features) or (heads, tokens, features), are a batch of one, such as
      packed sequences, with cu_seqlens or with positions that restart at 0.
    - `cos`, `sin`: (rows, pairs), float32, bfloat16 or float16; no gradient. `rotary_tables` computes them from angles.
    - `interleaved`: pairs are features (2i, 2i + 1); otherwise (i, i + pairs).
    - `positions`: int32 or int64, (tokens,) or (batch, tokens): the row of cos and sin for each token; by default offset + token.
    - `offsets`: the same dtypes and shapes; added to the row of each token.
    - `cu_seqlens`: int32 or int64, (sequences + 1,), from 0 to the number of tokens: the start of each packed sequence, where positions
      restart at `offset`. Its values are not read on the host.
    - `nope_first`: the last 2 * pairs features are rotated instead of the first.
    - `full_tables`: cos and sin are (rows, 2 * pairs), a column for each rotated feature: features a and b of a pair become
      a cos_a - b sin_a and b cos_b + a sin_b. The gradient is the transpose.
    - `column_tables`: (cos, sin) for tokens that form a grid in row-major order. The first 2 * pairs of the rotated features are rotated by
      the token's grid row in cos and sin, the next 2 * pairs by its grid column in these tables, which have as many rows as the grid has
      columns.
    - `inplace`: x itself is written and returned; not for tensors that require a gradient.

    The result has x's shape and dtype. The rotation is computed in float32 and rounded once. A position outside the tables raises
    ValueError on a CPU, and gives NaN on a GPU. Raises TypeError or ValueError, before anything is launched, for arguments that no kernel
    supports.
    """
    rotation = Rotation(
        cos, sin, interleaved, positions, offsets, cu_seqlens, offset, nope_first, full_tables, column_tables
    )
    (x_out,) = _rotate("rotary", ("x",), (x,), rotation, layout, inplace)
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
    offsets: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    offset: int = 0,
    nope_first: bool = False,
    full_tables: bool = False,
    column_tables: tuple[torch.Tensor, torch.Tensor] | None = None,
    layout: str = "bnhd",
    inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply rotary position embeddings to q and k in one launch; returns (q, k).

    q and k have the same batch, tokens and features, and may have different numbers of heads. cos, sin, interleaved, positions, offsets,
    cu_seqlens, offset, nope_first, full_tables, column_tables, layout, inplace and what is raised are as in `rotary`.
    """
    rotation = Rotation(
        cos, sin, interleaved, positions, offsets, cu_seqlens, offset, nope_first, full_tables, column_tables
    )
    q_out, k_out = _rotate("rotary_qk", ("q", "k"), (q, k), rotation, layout, inplace)
    return q_out, k_out


def rotary_tables(
    angles: torch.Tensor, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the cos and sin tables of `rotary` from angles (rows, pairs) in radians, position times frequency.

    Uses PyTorch operations on any device, in float32, or in float64 for float64 angles; rounded once to `dtype`. With a column of angles
    for each rotated feature, these are the tables for full_tables.
    """
    where = "hipkittens.rotary_tables"
    check_tensor(where, "angles", angles)
    if not angles.is_floating_point() or angles.dim() != 2:
        raise ValueError(
            f"{where}: angles is {tuple(angles.shape)} {angles.dtype}; it must be (rows, pairs) of a floating-point dtype"
        )
    if dtype not in DTYPES:
        raise TypeError(f"{where}: dtype is {dtype}; allowed: {', '.join(map(str, DTYPES))}")
    angles = angles.to(torch.promote_types(angles.dtype, torch.float32))
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(function, names, tensors, rotation, layout, inplace):
    batch, tokens = _check(function, names, tensors, rotation, layout, inplace)
    heads_first = layout == "bhnd"
    whole = tuple(value.unsqueeze(0) if value.dim() == 3 else value for value in tensors)
    operands = rotation.operands(batch, tokens)
    if _backend.uses_torch():
        results = tuple(_in_torch(value, operands, heads_first) for value in whole)
        if inplace:
            for value, result in zip(whole, results, strict=True):
                value.copy_(result)
    else:
        results = call(function + "_" * inplace, *whole, *operands, heads_first)
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


def _in_torch(x, operands, heads_first):
    if not heads_first:
        return turned_in_torch(x, *operands)
    return turned_in_torch(x.transpose(1, 2), *operands).transpose(1, 2)


def _check(function, names, tensors, rotation, layout, inplace) -> tuple[int, int]:
    """Checks the arguments and returns batch and tokens."""
    where = f"hipkittens.{function}"
    named = tuple(zip(names, tensors, strict=True))
    first = tensors[0]
    for name, value in named:
        check_tensor(where, name, value)
        check_dtype_and_device(where, name, value, DTYPES, names[0], first)
    rotation.check_types(where, names[0], first)
    if layout not in LAYOUTS:
        raise ValueError(f"{where}: layout is {layout!r}; allowed: bnhd, bhnd")
    for name, value in named:
        if value.dim() not in (3, 4) or value.dim() != first.dim():
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)}; it needs 4 dimensions, or 3 for packed sequences"
            )
        if value.dtype != first.dtype:
            raise TypeError(f"{where}: q is {first.dtype} and k is {value.dtype}; convert one to the other")
    token_axis = -2 if layout == "bhnd" else -3
    tokens, features = first.shape[token_axis], first.shape[-1]
    batch = first.shape[0] if first.dim() == 4 else 1
    for _, value in named[1:]:
        same = (value.shape[0] if value.dim() == 4 else 1, value.shape[token_axis], value.shape[-1])
        if same != (batch, tokens, features):
            raise ValueError(
                f"{where}: q has shape {tuple(first.shape)} and k {tuple(value.shape)}; only their heads may differ"
            )
    rotation.check(where, names[0], first, batch, tokens, features)
    if torch.is_grad_enabled() and inplace and any(value.requires_grad for value in tensors):
        raise ValueError(f"{where}: inplace=True records no gradient; use it under torch.no_grad() only")
    if inplace:
        for name, value in named:
            if value.shape[-1] > 1 and value.stride(-1) != 1:
                raise ValueError(
                    f"{where}: inplace=True needs unit last stride; {name} has {value.stride(-1)}"
                )
            if any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True)):
                raise ValueError(f"{where}: inplace=True on {name}, which is expanded; clone it first")
    _backend.check_device(where, names[0], first)
    return batch, tokens
