# SPDX-License-Identifier: MIT
"""Rotary embeddings by AITER's names: one table of their arguments, and one function that they all are.

rotate_style 0 turns features (i, i + r / 2), 1 turns (2i, 2i + 1). Tables of angles are r / 2 wide (reuse_freqs_front_part): wider
ones have no kernel. nope_first turns the last r features. Angles are applied in float32 and rounded once.
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
    rope.__signature__ = signature
    return rope


def _rope(name, given, count, kind, way):
    values = list(given.values())
    inputs = values[:count]
    if not given["reuse_freqs_front_part"]:
        refuse(
            name, "reuse_freqs_front_part", False, "pass angles of r / 2 features, which serve both halves"
        )
    if given["rotate_style"] not in (0, 1):
        raise ValueError(
            f"hipkittens.aiter.{name}: rotate_style is {given['rotate_style']!r}; allowed: 0 (NeoX), 1 (GPT-J)"
        )
    cos, sin = given.get("cos"), given.get("sin")
    if cos is None:
        angles = given["freqs"].float()
        cos, sin = angles.cos(), angles.sin()
    cos, sin = (table.reshape(-1, table.shape[-1]) for table in (cos, sin))
    options: dict[str, Any] = {"interleaved": given["rotate_style"] == 1}
    if kind == "thd":
        options["cu_seqlens"] = given["cu_seqlens"]
    elif "positions" in given:
        positions = given["positions"]
        positions = positions + given["offsets"] if "offsets" in given else positions
        options["positions"] = positions.t().contiguous()
    # Batches first, as our kernels count tokens.
    views = [each if kind == "thd" else each.transpose(0, 1) for each in inputs]
    tables = cos, -sin if way == "bwd" else sin
    turned = 2 * cos.shape[-1]
    part = given["nope_first"] and turned < inputs[0].shape[-1]
    if way == "fwd_inplace":
        _turn([_last(view, turned) if part else view for view in views], tables, inplace=True, **options)
        return None
    if part:
        results = [view.clone(memory_format=torch.contiguous_format) for view in views]
        _turn([_last(result, turned) for result in results], tables, inplace=True, **options)
    else:
        results = _turn(views, tables, **options)
    if kind != "thd":
        results = [each.transpose(0, 1) for each in results]
        if not given["transpose_output"]:
            results = [each.contiguous() for each in results]
    return results[0] if count == 1 else tuple(results)


def _last(x, features):
    return x[..., x.shape[-1] - features :]


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
    """query and key [tokens, heads * head_size], turned in place by the row of each position; caches are r / 2 wide."""
    cos, sin = (table.reshape(-1, table.shape[-1]) for table in (cos_cache, sin_cache))
    views = [each.view(positions.numel(), -1, head_size) for each in (query, key)]
    if is_nope_first:
        views = [_last(view, 2 * cos.shape[-1]) for view in views]
    rotary_qk(*views, cos, sin, interleaved=not is_neox, positions=positions.reshape(-1), inplace=True)
