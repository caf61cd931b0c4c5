# SPDX-License-Identifier: MIT
"""Scales of grouped products of 8-bit floats: which there are, by shape and recipe, and how the kernels get them."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from ._arguments import check_dtype_and_device, check_gets_no_gradient, check_tensor
from ._call import call
from .scaled_gemm import check_formats, in_dwords

Scaling = Literal["tensor", "row", "1x128", "128x128"]
Recipe = Scaling | tuple[Scaling, Scaling]

DTYPES = (torch.float8_e4m3fnuz, torch.float8_e4m3fn)
# Pairs that kernels have, those first that a call without a recipe means where shapes leave a choice.
_BUILT = (
    ("tensor", "tensor"),
    ("row", "row"),
    ("tensor", "row"),
    ("row", "tensor"),
    ("1x128", "128x128"),
)
_BLOCKED = ("1x128", "128x128")


class Scales(NamedTuple):
    """Factors as the operator takes them: a (M, blocks of K), b (G, columns or their blocks, blocks of K)."""

    a: torch.Tensor
    b: torch.Tensor
    blocks: bool


def checked(
    where: str,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    recipe: Recipe | None,
    bias: torch.Tensor | None,
) -> Scales:
    """Raises for scales and operands, a (M, K) and b (G, K, N), that no kernel takes."""
    if a.dim() != 2 or b.dim() != 3:
        raise ValueError(
            f"{where}: a has shape {tuple(a.shape)} and b {tuple(b.shape)}; with scales allowed: a (M, K) and b (G, K, N), groups of "
            "rows"
        )
    check_formats(where, a, b)
    given = {"scale_a": scale_a, "scale_b": scale_b}
    for name, scale in given.items():
        if scale is None:
            raise ValueError(
                f"{where}: {name} is None; give the factors of the codes, such as torch.ones(())"
            )
        check_tensor(where, name, scale)
        check_dtype_and_device(where, name, scale, (torch.float32,), "a", a)
    for name, value in {"a": a, "b": b, **given, "bias": bias}.items():
        if value is not None:
            check_gets_no_gradient(where, name, value)
    (m, k), (groups, _, n) = a.shape, b.shape
    first, second = _pair(where, scale_a, scale_b, recipe, m, k, groups, n)
    if k == 0:  # sums of nothing, whatever they are multiplied with
        one = scale_a.new_ones(())
        return Scales(one.expand(m, 1), one.expand(groups, n, 1), False)
    if first in _BLOCKED:
        return Scales(scale_a, scale_b.mT, True)
    rows = scale_a.reshape(m, 1).contiguous() if first == "row" else scale_a.reshape(1, 1).expand(m, 1)
    if second == "row":
        columns = scale_b.reshape(groups, n, 1).contiguous()
    else:
        columns = scale_b.reshape(-1, 1, 1).contiguous().expand(groups, n, 1)
    return Scales(rows, columns, False)


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor,
    scales: Scales,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """The grouped product of codes and scales that were checked."""
    codes = in_dwords(a.view(torch.uint8)), in_dwords(b.mT.view(torch.uint8)).mT
    bias = None if bias is None else bias.contiguous()
    return call(
        "scaled_grouped_gemm", *codes, offs.contiguous(), scales.a, scales.b, bias, scales.blocks, out_dtype
    )


def dequantized(a: torch.Tensor, b: torch.Tensor, scales: Scales) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes times their factors, in float32."""
    k, n = b.shape[1:]
    rows, columns = scales.a, scales.b
    if scales.blocks:
        rows = rows.repeat_interleave(128, 1)[:, :k]
        columns = columns.repeat_interleave(128, 1)[:, :n].repeat_interleave(128, 2)[..., :k]
    return a.float() * rows, b.float() * columns.mT


def _shapes(scaling: str, m: int, k: int, groups: int, n: int) -> tuple[list[tuple], list[tuple]]:
    """Those that a scaling has of a, and of b."""
    blocks = -(-k // 128)
    return {
        "tensor": ([()], [(groups, 1, 1), (groups, 1), (groups,)]),
        "row": ([(m, 1), (m,)], [(groups, 1, n), (groups, n)]),
        "1x128": ([(m, blocks)], []),
        "128x128": ([], [(groups, blocks, -(-n // 128))]),
    }[scaling]


def _pair(where, scale_a, scale_b, recipe, m, k, groups, n) -> tuple[str, str]:
    """How a and b are scaled."""
    candidates = _BUILT
    if recipe is not None:
        wanted = tuple(recipe) if isinstance(recipe, (tuple, list)) else (recipe, recipe)
        if wanted not in _BUILT:
            allowed = ", ".join(f"({first!r}, {second!r})" for first, second in _BUILT)
            raise ValueError(
                f"{where}: there is no kernel for the recipe {recipe!r}; allowed: 'tensor', 'row', None, or a pair, a's and b's: "
                f"{allowed}"
            )
        candidates = (wanted,)

    def fits(scale: torch.Tensor, scaling: str, which: int) -> bool:
        one = scaling == "tensor" and scale.numel() == 1
        return one or tuple(scale.shape) in _shapes(scaling, m, k, groups, n)[which]

    for pair in candidates:
        if fits(scale_a, pair[0], 0) and fits(scale_b, pair[1], 1):
            return pair
    allowed = "; ".join(
        f"{pair}: {_shapes(pair[0], m, k, groups, n)[0][0]} and {_shapes(pair[1], m, k, groups, n)[1][0]}"
        for pair in candidates
    )
    raise ValueError(
        f"{where}: scale_a has shape {tuple(scale_a.shape)} and scale_b {tuple(scale_b.shape)}; allowed with a {(m, k)} and b "
        f"{(groups, k, n)}: {allowed}; 'tensor' also one element"
    )
