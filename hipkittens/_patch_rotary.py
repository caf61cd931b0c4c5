# SPDX-License-Identifier: MIT
"""Transformers' apply_rotary_pos_emb on hipkittens.rotary_qk, for the attention modules of one model."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from ._function_globals import global_of, with_globals
from .rotary import rotary_qk

NAME = "apply_rotary_pos_emb"


def apply_rotary_pos_emb(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position_ids: Any = None,
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q cos + rotate_half(q) sin, and the same for k: q (B, H, N, D) and k (B, H_k, N, D), or (B, N, H, D) with unsqueeze_dim=2.

    cos and sin are (B or 1, N, D) with equal halves, as Transformers computes them; a device-side check fails if they are not. position_ids
    is not used, as in Transformers.
    """
    axis = unsqueeze_dim % (cos.dim() + 1) + 3 - cos.dim()
    if q.dim() != 4 or cos.dim() not in (2, 3) or axis not in (1, 2):
        raise ValueError(
            f"hipkittens: apply_rotary_pos_emb got q {tuple(q.shape)}, cos {tuple(cos.shape)} and unsqueeze_dim {unsqueeze_dim}; "
            "it needs q of (batch, heads, tokens, features) with cos unsqueezed there. hipkittens.patch(model, rotary=False) "
            "keeps the model's own"
        )
    pairs = cos.shape[-1] // 2
    _check_halves(cos, sin)
    dtype = torch.promote_types(q.dtype, cos.dtype)
    batch, tokens = q.shape[0], q.shape[2 if axis == 1 else 1]
    rows = 1 if cos.dim() == 2 else cos.shape[0]
    positions = None
    if rows > 1:
        positions = torch.arange(batch * tokens, device=q.device, dtype=torch.int32).view(batch, tokens)
    # Transformers' tables must not require a gradient, and the kernels compute none for them.
    cos, sin = (table.detach().reshape(-1, 2 * pairs)[:, :pairs] for table in (cos, sin))
    layout = "bhnd" if axis == 1 else "bnhd"
    return rotary_qk(q.to(dtype), k.to(dtype), cos, sin, positions=positions, layout=layout)


def _check_halves(cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Checks that both halves of the tables are equal; once per table, since every layer gets the same one."""
    if not torch.compiler.is_compiling():
        if getattr(cos, "_hipkittens_halves", None) is sin:
            return
        cos._hipkittens_halves = sin
    differences = [table.unflatten(-1, (2, -1)).diff(dim=-2) for table in (cos, sin)]
    torch._assert_async(
        (torch.cat(differences) == 0).all(),
        "hipkittens: the two halves of cos or of sin differ, so apply_rotary_pos_emb turns no pairs; "
        "hipkittens.patch(model, rotary=False) keeps the model's own",
    )


def members(original: type) -> dict[str, Any]:
    return {"forward": with_globals(original.forward, {NAME: apply_rotary_pos_emb})}


def understand(kind: type) -> tuple | str:
    """The rule for `replacement_class` of a class whose forward uses apply_rotary_pos_emb, or why there is none."""
    return _understand(global_of(kind.forward, NAME))


@functools.cache
def _understand(function: Any) -> tuple | str:
    """The result of the function for a few numbers decides, not its name: models use that name for several functions."""
    names = list(inspect.signature(function).parameters)
    if names[:4] != ["q", "k", "cos", "sin"] or "unsqueeze_dim" not in names:
        return f"its {NAME} takes {', '.join(names)}; (q, k, cos, sin, ..., unsqueeze_dim) is replaced"
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k = random(2, 3, 5, 8), random(2, 1, 5, 8)
    cos, sin = (random(2, 5, 4).repeat(1, 1, 2) for _ in range(2))

    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * cos.unsqueeze(1) + torch.cat((-b, a), -1) * sin.unsqueeze(1)

    try:
        with torch.device("cpu"), torch.no_grad():
            results = function(q, k, cos, sin)
        same = all(torch.allclose(found, turned(x)) for found, x in zip(results, (q, k), strict=True))
    except Exception as error:
        return f"its {NAME} cannot be run on its own ({type(error).__name__}: {error})"
    return ("rotary",) if same else f"its {NAME} is another rotation than that of the two halves"
