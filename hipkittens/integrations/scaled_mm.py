# SPDX-License-Identifier: MIT
"""Redirects the 8-bit matrix products of unmodified PyTorch programs to hipkittens.scaled_matmul and hipkittens.grouped_matmul.

    from hipkittens.integrations import scaled_mm

    with scaled_mm.active():           # or scaled_mm.activate() ... scaled_mm.restore()
        model(x).sum().backward()      # torchao's Float8Linear, F.scaled_mm, torch._scaled_mm, torch._int_mm

While active, aten::_scaled_mm, aten::_scaled_mm_v2 (torch.nn.functional.scaled_mm) and aten::_int_mm, each with its out variant,
have kernels of ours for CPU tensors and, on a ROCm build of PyTorch, for GPU tensors. So do aten::_scaled_grouped_mm and
aten::_scaled_grouped_mm_v2 (F.scaled_grouped_mm), which PyTorch does not support on a CPU: groups of rows of e4m3 with scales of rows, (M,)
and (G, N), and whatever else `grouped_matmul` supports: MXFP8 and MXFP4 on gfx950, with scales in PyTorch's swizzle (SWIZZLE_32_4_4, for
each group), which are first converted to rows, or in rows, a's (M, K / 32) and b's (G, N, K / 32). They are registered below autograd,
which has no derivative of these operators. torch.compile keeps the operators in its graph and calls them when the graph runs.

How operands are scaled follows from the shapes and dtypes of their scales, as PyTorch infers it. Calls that no kernel supports fall back to
the previous kernel, with one line per reason to logging.getLogger("hipkittens"), level WARNING; `passed_on` lists the reasons. Results in
an 8-bit format are accumulated in float32 and converted by PyTorch. scale_result is used only with those, and PyTorch's kernels differ in
what it means, so such a call falls back. use_fast_accum has no effect.

The state belongs to the process, not to a thread; see `sdpa`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ..grouped import grouped_matmul
from ..scaled_gemm import OUTPUT_DTYPES, scaled_matmul
from ..scaled_grouped import FLOAT4, length
from ._passing_on import PassOn, Reasons, taking_over

_reasons = Reasons("hipkittens.integrations.scaled_mm")
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
# By number in torch.nn.functional.ScalingType and SwizzleType. 2 and its swizzled variants are NVFP4, which no kernel here supports.
_SCALINGS = {0: "tensor", 1: "row", 3: "1x32", 4: "1x128", 5: "128x128"}
_SWIZZLES = {0: None, 1: "32_4_4"}


def activate() -> None:
    """From now on the 8-bit matrix products of this process use hipkittens where possible. Repeated calls have no effect."""
    for switch in _switches:
        switch.activate()


def restore() -> None:
    """Restores PyTorch's own kernels, at once or, inside `active`, when that ends. Repeated calls have no effect."""
    for switch in _switches:
        switch.restore()


@contextlib.contextmanager
def active() -> Iterator[None]:
    """Context manager for activate(). May be nested; the outermost one restores, unless activate() was called on its own."""
    with contextlib.ExitStack() as stack:
        for switch in _switches:
            stack.enter_context(switch.active())
        yield


def is_active() -> bool:
    return _switches[0].is_active()


def passed_on() -> list[str]:
    """Why calls fell back to PyTorch's own kernels since the last activation; each reason once."""
    return _reasons()


def _scaled_mm(
    a,
    b,
    scale_a,
    scale_b,
    bias=None,
    scale_result=None,
    out_dtype=None,
    use_fast_accum=False,
):
    if a.dtype not in _FLOAT8:
        raise PassOn(f"self is {a.dtype}; kernels behind torch._scaled_mm take 8-bit floats")
    out_dtype = a.dtype if out_dtype is None else out_dtype
    if scale_result is not None and out_dtype not in OUTPUT_DTYPES:
        raise PassOn(
            "scale_result is given and the result is in 8 bits; PyTorch's kernels differ in what that means"
        )
    return _product(a, b, scale_a, scale_b, _recipe(a, b, scale_a, scale_b), bias, out_dtype)


def _scaled_mm_v2(
    a,
    b,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    bias=None,
    out_dtype=None,
    contraction_dim=(),
    use_fast_accum=False,
):
    if a.dtype not in _FLOAT8:
        raise PassOn(f"self is {a.dtype}; kernels behind torch.nn.functional.scaled_mm take 8-bit floats")
    recipe, swizzle = _described(
        (scale_a, recipe_a, swizzle_a), (scale_b, recipe_b, swizzle_b), contraction_dim
    )
    out_dtype = a.dtype if out_dtype is None else out_dtype
    return _product(a, b, scale_a[0], scale_b[0], recipe, bias, out_dtype, swizzle)


def _scaled_grouped_mm(
    a,
    b,
    scale_a,
    scale_b,
    offs=None,
    bias=None,
    scale_result=None,
    out_dtype=None,
    use_fast_accum=False,
):
    if scale_result is not None:
        raise PassOn("scale_result is given; kernels behind torch._scaled_grouped_mm have none")
    recipe = "1x32" if {scale_a.dtype, scale_b.dtype} == {torch.float8_e8m0fnu} else None
    swizzle = None if recipe is None else "32_4_4"
    return _grouped_product(a, b, scale_a, scale_b, recipe, swizzle, offs, bias, out_dtype)


def _scaled_grouped_mm_v2(
    a,
    b,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    offs=None,
    bias=None,
    out_dtype=None,
    contraction_dim=(),
    use_fast_accum=False,
):
    recipe, swizzle = _described(
        (scale_a, recipe_a, swizzle_a), (scale_b, recipe_b, swizzle_b), contraction_dim
    )
    return _grouped_product(a, b, scale_a[0], scale_b[0], recipe, swizzle, offs, bias, out_dtype)


def _described(of_a, of_b, contraction_dim) -> tuple[tuple[str, str], str | None]:
    """The recipe for lists of scales, scalings and swizzles, and how both are swizzled."""
    for name, (scales, _, _) in (("scale_a", of_a), ("scale_b", of_b)):
        if len(scales) != 1:
            raise PassOn(f"{name} has {len(scales)} tensors; kernels take one")
    if list(contraction_dim) not in ([], [1, 0], [-1, -2]):
        raise PassOn(
            f"contraction_dim is {list(contraction_dim)}; kernels sum over self's last dimension and mat2's first"
        )
    try:
        recipe = tuple(_SCALINGS[number] for _, (number,), _ in (of_a, of_b))
        swizzles = {_SWIZZLES[number] for _, _, of_one in (of_a, of_b) for number in of_one} or {None}
    except (KeyError, ValueError):
        raise PassOn(f"no kernel has the scalings {of_a[1]} and {of_b[1]}") from None
    if len(swizzles) != 1:
        raise PassOn("the scales of the operands are swizzled differently")
    return recipe, swizzles.pop()


def _grouped_product(a, b, scale_a, scale_b, recipe, swizzle, offs, bias, out_dtype):
    if recipe in ("1x32", ("1x32", "1x32")):
        if a.dim() != 2 or b.dim() != 3 or offs is None:
            raise PassOn("scales of 32 of K are those of groups of rows alone")
        scale_a, scale_b = _rows_of_factors(a, b, scale_a, scale_b, offs, swizzle)
    elif swizzle is not None:
        raise PassOn("scales of groups are swizzled; kernels read rows of them")
    return grouped_matmul(
        a, b, offs, scale_a=scale_a, scale_b=scale_b, recipe=recipe, bias=bias, out_dtype=out_dtype
    )


def _rows_of_factors(a, b, scale_a, scale_b, offs, swizzle) -> tuple[torch.Tensor, torch.Tensor]:
    """(M, K / 32) and (G, K / 32, N) from scales in PyTorch's order."""
    groups, stored, n = b.shape
    columns = length("fp4" if b.dtype in FLOAT4 else "fp8", stored) // 32
    if swizzle is None:
        return scale_a, scale_b.mT
    of_b = _rows_of_tiles(scale_b.reshape(groups, -1), columns)
    if of_b.shape[1] < n:
        raise PassOn(f"scale_b has shape {tuple(scale_b.shape)}, too few whole tiles of 128 rows for {n}")
    of_a = _rows_of_tiles(scale_a.reshape(1, -1), columns)[0]
    ends = offs.clamp(0, a.shape[0])
    begins = torch.cat((ends.new_zeros(1), ends))
    tiles = (begins.diff() + 127) // 128  # of each group, which begins with a new tile
    first = torch.cat((tiles.new_zeros(1), tiles.cumsum(0))) * 128
    row = torch.arange(a.shape[0], dtype=ends.dtype, device=ends.device)
    group = torch.bucketize(row, ends, right=True)
    place = (first[group] + row - begins[group]).clamp(0, max(of_a.shape[0] - 1, 0))
    if a.shape[0] and not of_a.shape[0]:
        raise PassOn(f"scale_a has shape {tuple(scale_a.shape)}, no whole tile of 128 rows")
    return of_a.index_select(0, place), of_b[:, :n].mT


def _rows_of_tiles(scale: torch.Tensor, columns: int) -> torch.Tensor:
    """Bytes (matrices, elements) in tiles of 128 rows by 4 columns, SWIZZLE_32_4_4, as (matrices, rows, columns): byte
    16 (r % 32) + 4 (r // 32) + c of a tile is that of row r and column c. Incomplete rows of tiles are dropped.
    """
    across = -(-columns // 4)
    down = scale.shape[1] // (512 * across) if across else 0
    tiles = scale.view(torch.uint8)[:, : down * across * 512].reshape(len(scale), down, across, 32, 4, 4)
    return tiles.permute(0, 1, 4, 3, 2, 5).reshape(len(scale), down * 128, across * 4)[..., :columns]


def _int_mm(a, b):
    return scaled_matmul(a, b, None, None, out_dtype=torch.int32)


def _product(a, b, scale_a, scale_b, recipe, bias, out_dtype, swizzle=None):
    wide = torch.float32 if out_dtype in _FLOAT8 else out_dtype
    product = scaled_matmul(a, b, scale_a, scale_b, recipe=recipe, swizzle=swizzle, bias=bias, out_dtype=wide)
    return product.to(out_dtype)


def _recipe(a, b, scale_a, scale_b) -> tuple[str, str]:
    """As inferred by torch._scaled_mm: the first pair that both scales fit."""
    if a.dim() != 2 or b.dim() != 2:
        raise PassOn("an operand is no matrix")
    (m, k), n = a.shape, b.shape[1]
    blocks, column_blocks = -(-k // 128), -(-n // 128)
    if {scale_a.dtype, scale_b.dtype} == {torch.float8_e8m0fnu}:
        return "1x32", "1x32"
    can_be_a = {
        "tensor": scale_a.numel() == 1,
        "row": tuple(scale_a.shape) == (m, 1) and scale_a.is_contiguous(),
        "1x128": tuple(scale_a.shape) == (m, blocks),
        "128x128": tuple(scale_a.shape) == (-(-m // 128), blocks),
    }
    can_be_b = {
        "tensor": scale_b.numel() == 1,
        "row": tuple(scale_b.shape) == (1, n) and scale_b.is_contiguous(),
        "1x128": tuple(scale_b.shape) == (blocks, n),
        "128x128": tuple(scale_b.shape) == (blocks, column_blocks),
    }
    pairs = (
        ("tensor", "tensor"),
        ("row", "row"),
        ("1x128", "128x128"),
        ("128x128", "1x128"),
        ("1x128", "1x128"),
    )
    for first, second in pairs:
        if can_be_a[first] and can_be_b[second]:
            return first, second
    raise PassOn(f"scales of the shapes {tuple(scale_a.shape)} and {tuple(scale_b.shape)} fit no recipe")


# Grouped products of 16-bit floats are in a separate module, grouped_mm.
_switches = [
    taking_over(getattr(operator, overload), name, ours, _reasons)
    for name, ours in (
        ("_scaled_mm", _scaled_mm),
        ("_scaled_mm_v2", _scaled_mm_v2),
        ("_int_mm", _int_mm),
        ("_scaled_grouped_mm", _scaled_grouped_mm),
        ("_scaled_grouped_mm_v2", _scaled_grouped_mm_v2),
    )
    if (operator := getattr(torch.ops.aten, name, None)) is not None
    for overload in ("default", "out")
    if overload in operator.overloads()
]
