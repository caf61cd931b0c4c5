# SPDX-License-Identifier: MIT
"""Rotary embeddings by AITER's names: one table of their arguments, and one function that implements all of them.

rotate_style 0 rotates features (i, i + r / 2), 1 rotates (2i, 2i + 1). Tables of angles are r / 2 wide with reuse_freqs_front_part, and r
without, a column for each feature. nope_first rotates the last r features. The rotation is computed in float32 and rounded once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..rotary import rotary, rotary_qk
from ._results import refuse

_TABLES = {
    "": ("freqs",),
    "cached": ("cos", "sin"),
    "cached_positions": ("cos", "sin", "positions"),
    "cached_positions_offsets": ("cos", "sin", "positions", "offsets"),
    "thd": ("freqs",),
}
_OPTIONS = ("rotate_style", "reuse_freqs_front_part", "nope_first")


def _arguments(kind: str, two: bool, way: str) -> inspect.Signature:
    tensors = "output_grads" if way == "bwd" else "input"
    names = [f"{tensors}_x", f"{tensors}_y"] if two else [tensors]
    names += ["cu_seqlens"] if kind == "thd" else []
    names += [*_TABLES[kind], *_OPTIONS]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    if kind != "thd" and way != "fwd_inplace":
        parameters.append(
            inspect.Parameter("transpose_output", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False)
        )
    return inspect.Signature(parameters)


def _function(kind: str, two: bool, way: str) -> Callable[..., Any]:
    name = "_".join(filter(None, ("rope", kind, "2c" if two else "", way)))
    signature = _arguments(kind, two, way)

    def rope(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        return _rope(name, bound.arguments, 2 if two else 1, kind, way)

    shape = "[tokens, heads, features]" if kind == "thd" else "[tokens, batch, heads, features]"
    verb = {"fwd": "turned", "bwd": "turned back: the gradient", "fwd_inplace": "turned in place"}[way]
    rope.__name__ = rope.__qualname__ = name
    rope.__doc__ = f"{shape} {verb}; `{name}{signature}` as AITER has it."
    rope.__signature__ = signature  # type: ignore[attr-defined]
    return rope


def _rope(name, given, count, kind, way):
    values = list(given.values())
    inputs = values[:count]
    cos, sin = given.get("cos"), given.get("sin")
    if cos is None:
        angles = given["freqs"].float()
        cos, sin = angles.cos(), angles.sin()
    cos, sin = (rows_of(name, table) for table in (cos, sin))
    options = _options(name, given["rotate_style"], given["reuse_freqs_front_part"], given["nope_first"])
    if kind == "thd":
        options["cu_seqlens"] = given["cu_seqlens"]
    elif "positions" in given:
        for numbers in given.keys() & {"positions", "offsets"}:
            options[numbers] = given[numbers].t().contiguous()
    # Batches first, as our kernels count tokens.
    views = [each if kind == "thd" else each.transpose(0, 1) for each in inputs]
    tables = (cos, sin) if way != "bwd" else _back(cos, sin, **options)
    if way == "fwd_inplace":
        _turn(views, tables, inplace=True, **options)
        return None
    results = _turn(views, tables, **options)
    if kind != "thd":
        results = [each.transpose(0, 1) for each in results]
        if not given["transpose_output"]:
            results = [each.contiguous() for each in results]
    return results[0] if count == 1 else tuple(results)


def _options(name, rotate_style, reuse_freqs_front_part, nope_first) -> dict[str, Any]:
    if rotate_style not in (0, 1):
        raise ValueError(
            f"hipkittens.aiter.{name}: rotate_style is {rotate_style!r}; allowed: 0 (NeoX), 1 (GPT-J)"
        )
    return {
        "interleaved": rotate_style == 1,
        "full_tables": not reuse_freqs_front_part,
        "nope_first": bool(nope_first),
    }


def _back(cos, sin, *, interleaved, full_tables, **_):
    """Tables of the transpose: in full ones, the sines of the two features of a pair are swapped."""
    if not full_tables:
        return cos, -sin
    pairs = (-1, 2) if interleaved else (2, -1)
    return cos, -sin.unflatten(-1, pairs).flip(-1 if interleaved else -2).flatten(-2)


def rows_of(name: str, table: torch.Tensor) -> torch.Tensor:
    """A table [.., rows, .., columns] as [rows, columns]: one dimension is that of rows, and the others have size 1."""
    if sum(size > 1 for size in table.shape[:-1]) > 1:
        refuse(
            name,
            "a table of angles",
            f"of shape {tuple(table.shape)}",
            "pass one that all heads and batches share",
        )
    return table.reshape(-1, table.shape[-1])


def _turn(views, tables, **options):
    if len(views) == 1:
        return [rotary(*views, *tables, **options)]
    return list(rotary_qk(*views, *tables, **options))


ROPE = {
    function.__name__: function
    for kind in _TABLES
    for two in (False, True)
    for way in ("fwd", "fwd_inplace", "bwd")
    if not (kind == "thd" and two) and not ("positions" in kind and way == "bwd")
    for function in (_function(kind, two, way),)
}


def rotary_embedding_fwd(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor,
    is_neox: bool,
    is_nope_first: bool,
) -> None:
    """query and key [tokens, heads * head_size], rotated in place by the row of each position; caches are r / 2 wide."""
    cos, sin = (rows_of("rotary_embedding_fwd", table) for table in (cos_cache, sin_cache))
    q, k = (each.view(positions.numel(), -1, head_size) for each in (query, key))
    rotary_qk(q, k, cos, sin, interleaved=not is_neox, positions=positions.reshape(-1), nope_first=bool(is_nope_first),
              inplace=True)  # fmt: skip


def rope_2d_fwd(
    input: torch.Tensor,
    cos_h: torch.Tensor,
    sin_h: torch.Tensor,
    cos_w: torch.Tensor,
    sin_w: torch.Tensor,
    img_height: int,
    img_width: int,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> torch.Tensor:
    """[batch, img_height * img_width, heads, features]: the first half of the features is rotated by a token's row of the image, the
    second by its column. Tables have an angle for each pair of a half, or without reuse_freqs_front_part for each feature; tables for less
    than all features are not supported.
    """
    return _rope_2d("rope_2d_fwd", input, (cos_h, sin_h, cos_w, sin_w), (img_height, img_width),
                    (rotate_style, reuse_freqs_front_part, nope_first))  # fmt: skip


def rope_2d_fwd_inplace(
    input: torch.Tensor,
    cos_h: torch.Tensor,
    sin_h: torch.Tensor,
    cos_w: torch.Tensor,
    sin_w: torch.Tensor,
    img_height: int,
    img_width: int,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    """`rope_2d_fwd` into input."""
    _rope_2d("rope_2d_fwd_inplace", input, (cos_h, sin_h, cos_w, sin_w), (img_height, img_width),
             (rotate_style, reuse_freqs_front_part, nope_first), inplace=True)  # fmt: skip


def rope_2d_bwd(
    output_grads: torch.Tensor,
    cos_h: torch.Tensor,
    sin_h: torch.Tensor,
    cos_w: torch.Tensor,
    sin_w: torch.Tensor,
    img_height: int,
    img_width: int,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> torch.Tensor:
    """The gradient of `rope_2d_fwd`."""
    return _rope_2d("rope_2d_bwd", output_grads, (cos_h, sin_h, cos_w, sin_w), (img_height, img_width),
                    (rotate_style, reuse_freqs_front_part, nope_first), back=True)  # fmt: skip


def rope_fwd_3d(
    x: torch.Tensor,
    grid_sizes: torch.Tensor,
    freqs: torch.Tensor,
    sp_size: int,
    sp_rank: int,
) -> torch.Tensor:
    """[batch, tokens, heads, C], float32: pairs (2i, 2i + 1) rotated by complex freqs [rows, C / 2], the first C / 2 - 2 (C / 6) of them by
    the row of a token's frame, the next C / 6 by that of its height and the last C / 6 by that of its width. grid_sizes [batch, 3] are
    frames, height and width of each video, whose tokens are divided equally among sp_size ranks; these are those of sp_rank. Rows past
    the last one are clamped to it, and tokens past the last one of a video are copied. Rows of tokens are gathered by PyTorch operations
    before the launch.
    """
    name = "rope_fwd_3d"
    where = f"hipkittens.aiter.{name}"
    if x.dim() != 4 or x.shape[-1] % 2 or x.shape[-1] == 0:
        raise ValueError(
            f"{where}: x has shape {tuple(x.shape)}; it must be (batch, tokens, heads, features), of an even number of features"
        )
    batch, tokens, _, features = x.shape
    pairs, third = features // 2, features // 6
    if not freqs.is_complex() or freqs.dim() != 2 or freqs.shape[1] != pairs or freqs.shape[0] == 0:
        raise ValueError(
            f"{where}: freqs has shape {tuple(freqs.shape)} and dtype {freqs.dtype}; it must be (rows, {pairs}), complex, of 1 row or more"
        )
    if tuple(grid_sizes.shape) != (batch, 3):
        raise ValueError(f"{where}: grid_sizes has shape {tuple(grid_sizes.shape)}; it must be ({batch}, 3)")
    if not 0 <= sp_rank < sp_size:
        raise ValueError(
            f"{where}: sp_rank is {sp_rank} of sp_size {sp_size}; 0 .. {sp_size - 1} are allowed"
        )
    if batch * tokens == 0:
        return torch.empty_like(x, dtype=torch.float32)
    frames, height, width = grid_sizes.to(x.device, torch.int64).unbind(1)
    token = torch.arange(tokens, device=x.device) + sp_rank * tokens
    there = token < (frames * height * width)[:, None]
    of_frame, of_width = (size[:, None].clamp_min(1) for size in (height * width, width))
    row = torch.stack((token // of_frame, token % of_frame // of_width, token % of_width), -1)
    pair = torch.arange(pairs, device=x.device)
    axis = (pair >= pairs - 2 * third).long() + (pair >= pairs - third).long()
    row = row.clamp(max=freqs.shape[0] - 1)[..., axis]
    angles = freqs[row, pair].to(torch.complex64)
    cos, sin = (
        torch.where(there[..., None], part, rest).flatten(0, 1)
        for part, rest in ((angles.real, 1.0), (angles.imag, 0.0))
    )
    positions = torch.arange(batch * tokens, device=x.device).view(batch, tokens)
    return rotary(x.float(), cos, sin, interleaved=True, positions=positions)


def _rope_2d(name, x, tables, sizes, style, back=False, inplace=False):
    options = _options(name, *style)
    if x.dim() != 4 or x.shape[1] != sizes[0] * sizes[1]:
        raise ValueError(f"hipkittens.aiter.{name}: input has shape {tuple(x.shape)}; it must be (batch, {sizes[0]} * {sizes[1]}, heads, "
                         "features)")  # fmt: skip
    turned = tables[0].shape[-1] * (2 if options["full_tables"] else 4)
    if turned != x.shape[-1]:
        refuse(
            name,
            "cos_h",
            f"an angle of {turned} features of {x.shape[-1]}",
            "turn all, or use hipkittens.rotary",
        )
    flat = [rows_of(name, table) for table in tables]
    for axis, size, table in (("cos_h", sizes[0], flat[0]), ("cos_w", sizes[1], flat[2])):
        if table.shape[0] < size:
            raise ValueError(
                f"hipkittens.aiter.{name}: {axis} has {table.shape[0]} rows for an image of {sizes[0]} x {sizes[1]}"
            )
    rows, columns = flat[:2], [table[: sizes[1]] for table in flat[2:]]
    if back:
        rows, columns = _back(*rows, **options), _back(*columns, **options)
    return rotary(x, *rows, column_tables=tuple(columns), inplace=inplace, **options)
