# SPDX-License-Identifier: MIT
"""Scales of quantized grouped products: which are supported, by format, shape and recipe, and how they are passed to the kernels."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_gets_no_gradient, check_tensor
from ._call import call
from .quantization import dtype_of
from .scaled_gemm import (
    FORMATS,
    INT8_LIMIT,
    SCALINGS,
    banded_shape,
    check_has_matrix,
    in_dwords,
    in_float,
    shuffled,
)

Scaling = Literal["tensor", "row", "1x32", "1x128", "128x128"]
Recipe = Scaling | tuple[Scaling, Scaling]

FLOAT8 = (torch.float8_e4m3fnuz, torch.float8_e4m3fn)
FLOAT4 = (torch.uint8, torch.float4_e2m1fn_x2)
SCALES_OF_32 = (torch.uint8, torch.float8_e8m0fnu)
CODES = (*FLOAT8, torch.int8, *FLOAT4)
DTYPES = (*CODES, torch.bfloat16)
_FORMAT_OF = {
    **dict.fromkeys(FLOAT8, "fp8"),
    **dict.fromkeys(FLOAT4, "fp4"),
    torch.int8: "int8",
    torch.bfloat16: "bf16",
}
_BLOCKED = ("1x128", "128x128")
_MX = "1x32"
_OUTER = (("tensor", "tensor"), ("row", "row"), ("tensor", "row"), ("row", "tensor"))
# In whole dwords, to which rows are padded.
MOST_INT8_PRODUCTS = INT8_LIMIT - 4
# Recipes that kernels support for a pair of formats; the first ones are inferred if the shapes are ambiguous.
_BUILT: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("fp8", "fp8"): (*_OUTER, ("1x128", "128x128"), (_MX, _MX)),
    ("int8", "int8"): _OUTER,
    ("fp4", "fp4"): ((_MX, _MX),),
    ("fp8", "fp4"): ((_MX, _MX), ("tensor", _MX), ("row", _MX)),
    ("bf16", "fp4"): (("tensor", _MX), ("row", _MX)),
}


class Scales(NamedTuple):
    """Scales as the kernels read them: of a (M, blocks of K), or 1x32 scales in bands (csrc/kernels/quantize/row_bands.h); of b
    (G, columns or their blocks, blocks of K), or for 1x32 (G, bytes in the kernels' order); none for int8 sums. formats and recipe
    are pairs, a's and b's.
    """

    a: torch.Tensor | None
    b: torch.Tensor | None
    formats: tuple[str, str]
    recipe: tuple[str, str]
    in_bands: bool


def check_formats(where: str, a: torch.Tensor, b: torch.Tensor) -> tuple[str, str]:
    """The formats of a (M, K) and b (G, K, N), both in bytes where K is of 4 bits. Raises for those that no kernel supports."""
    for name, value in (("a", a), ("b", b)):
        if value.dtype not in _FORMAT_OF:
            raise TypeError(
                f"{where}: {name} is {value.dtype}; allowed: {', '.join(map(str, DTYPES[:-1]))}, and torch.bfloat16 for a"
            )
    formats = _FORMAT_OF[a.dtype], _FORMAT_OF[b.dtype]
    if formats not in _BUILT:
        raise TypeError(
            f"{where}: a is {a.dtype} and b is {b.dtype}; allowed: both e4m3, both torch.int8, both e2m1 (torch.uint8 or "
            "float4_e2m1fn_x2), or a of e4m3 or bfloat16 and b of e2m1"
        )
    if a.device.type == "meta" or _backend.uses_torch():
        return formats
    for name, value, format in (("a", a, formats[0]), ("b", b, formats[1])):
        if format == "fp8" and value.dtype != (allowed := dtype_of("fp8", value.device, where)):
            raise TypeError(
                f"{where}: {name} is {value.dtype}; {_backend.arch_of(value.device)} multiplies {allowed}, whose codes have "
                f"other values: quantise for this target, or convert by {name}.float().to({allowed}) and adapt the scale"
            )
    return formats


def _check_sums(where: str, given: dict[str, object], a: torch.Tensor, b: torch.Tensor) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{where}: out_dtype is torch.int32, the sums themselves, and {name} is given; leave it None, or choose a float "
                "out_dtype"
            )
    for name, value in (("a", a), ("b", b)):
        check_gets_no_gradient(where, name, value)


def length(format: str, stored: int) -> int:
    """The number of codes along K of an operand of this stored length."""
    return 2 * stored if format == "fp4" else stored


def checked(
    where: str,
    a: torch.Tensor,
    b: torch.Tensor,
    m: int,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    recipe: Recipe | None,
    swizzle: str | None,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> Scales:
    """Raises for scales and operands, a (M, K) and b (G, K, N), that no kernel supports."""
    if a.dim() != 2 or b.dim() != 3:
        raise ValueError(
            f"{where}: a has shape {tuple(a.shape)} and b {tuple(b.shape)}; with scales allowed: a (M, K) and b (G, K, N), groups of "
            "rows"
        )
    formats = check_formats(where, a, b)
    given = {"scale_a": scale_a, "scale_b": scale_b}
    if formats[0] == "int8" and a.shape[1] > MOST_INT8_PRODUCTS:
        raise ValueError(
            f"{where}: K is {a.shape[1]}; sums of int8 products fit in 32 bits up to {MOST_INT8_PRODUCTS}: split K"
        )
    if out_dtype == torch.int32:
        _check_sums(where, {**given, "recipe": recipe, "swizzle": swizzle, "bias": bias}, a, b)
        return Scales(None, None, formats, ("row", "row"), in_bands=False)
    for name, scale in given.items():
        if scale is None:
            if (name, formats[0]) == ("scale_a", "bf16"):
                continue
            raise ValueError(
                f"{where}: {name} is None; give the factors of the codes, such as torch.ones(())"
            )
        check_tensor(where, name, scale)
        check_dtype_and_device(where, name, scale, (torch.float32, *SCALES_OF_32), "a", a)
    for name, value in {"a": a, "b": b, **given, "bias": bias}.items():
        check_gets_no_gradient(where, name, value)
    (groups, _, n), k = b.shape, length(formats[0], a.shape[1])
    if k == 0:  # empty sums, for any format and any scales
        one = b.new_ones((), dtype=torch.float32)
        return Scales(
            one.expand(m, 1), one.expand(groups, n, 1), ("fp8", "fp8"), ("row", "row"), in_bands=False
        )
    sizes = _Sizes(m, k, groups, n)
    pair = _pair(where, formats, scale_a, scale_b, recipe, swizzle, sizes)
    if pair[1] == _MX:
        if k % 32:
            raise ValueError(
                f"{where}: K is {k}; scales of 32 of K need a multiple of 32: pad codes and scales with zeros and 127"
            )
        if formats[0] != "bf16" and not (a.device.type == "meta" or _backend.uses_torch()):
            check_has_matrix(where, a, "the recipe '1x32' needs")
    in_bands = pair[0] == _MX and scale_a.shape != (m, k // 32)
    if (swizzle or in_bands) and _backend.uses_torch():
        which = repr(swizzle) if swizzle else "banded"
        raise ValueError(f"{where}: HIPKITTENS_BACKEND is torch, which reads no {which} scales; unset it")
    return Scales(
        _factors_of_a(scale_a, pair[0], sizes),
        _factors_of_b(scale_b, pair[1], swizzle, sizes),
        formats,
        pair,
        in_bands,
    )


class _Sizes(NamedTuple):
    m: int
    k: int
    groups: int
    n: int


def _factors_of_a(scale: torch.Tensor | None, scaling: str, sizes: _Sizes) -> torch.Tensor | None:
    if scale is None or scaling in (_MX, *_BLOCKED):
        return scale
    rows = sizes.m, 1
    return scale.reshape(rows).contiguous() if scaling == "row" else scale.reshape(1, 1).expand(rows)


def _factors_of_b(scale: torch.Tensor, scaling: str, swizzle: str | None, sizes: _Sizes) -> torch.Tensor:
    if scaling == "row":
        return scale.reshape(sizes.groups, sizes.n, 1).contiguous()
    if scaling == "tensor":
        return scale.reshape(-1, 1, 1).contiguous().expand(sizes.groups, sizes.n, 1)
    return scale if swizzle else scale.mT


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor,
    scales: Scales,
    swizzle: str | None,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    panels: torch.Tensor | None = None,
    entries: torch.Tensor | None = None,
    choices: int = 1,
) -> torch.Tensor:
    """The grouped product of checked codes and scales. panels: what is read instead of b, in b's shape."""
    offs = offs.contiguous()
    if a.stride(1) != 1:
        a = a.contiguous()
    codes = (
        in_dwords(a.view(torch.uint8)),
        in_dwords(b.mT.view(torch.uint8)).mT if panels is None else panels.view(torch.uint8),
    )
    first, second = scales.a, scales.b
    if scales.recipe[0] == _MX:
        first = first.view(torch.uint8)
        if not scales.in_bands:
            first = call("scales_in_bands", first, offs)
    if scales.recipe[1] == _MX:
        second = second.view(torch.uint8) if swizzle else shuffled(second)
    # One factor for all rows is passed as one for each, with stride 0.
    scalings = (each if each in (_MX, *_BLOCKED) else "row" for each in scales.recipe)
    return call(
        "scaled_grouped_gemm",
        *codes,
        offs,
        first,
        second,
        None if bias is None else bias.contiguous(),
        None if entries is None else entries.contiguous(),
        choices,
        *(FORMATS[each] for each in scales.formats),
        *(SCALINGS[each] for each in scalings),
        out_dtype,
    )


def dequantized(a: torch.Tensor, b: torch.Tensor, scales: Scales) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes times their factors, in float32, or in float64 for int8."""
    left, right = a, b.mT
    rows, columns = scales.a, scales.b
    if scales.formats[0] == "int8":  # sums of int8 are exact
        left, right = left.double(), right.double()
        return (left, right.mT) if rows is None else (left * rows.double(), (right * columns.double()).mT)
    if scales.recipe[1] == _MX:
        right = in_float(right, columns, scales.formats[1])
        if scales.recipe[0] == _MX:
            return in_float(left, rows, scales.formats[0]), right.mT
        return left.float() * (1.0 if rows is None else rows), right.mT
    if scales.recipe[0] in _BLOCKED:
        rows = rows.repeat_interleave(128, 1)[:, : a.shape[1]]
        columns = columns.repeat_interleave(128, 1)[:, : b.shape[2]].repeat_interleave(128, 2)[
            ..., : b.shape[1]
        ]
    return left.float() * rows, (right.float() * columns).mT


def _shapes(scaling: str, sizes: _Sizes) -> tuple[list[tuple], list[tuple]]:
    """The shapes that a scaling may have for a, the last of them in bands, and for b."""
    m, k, groups, n = sizes
    blocks = -(-k // 128)
    return {
        "tensor": ([()], [(groups, 1, 1), (groups, 1), (groups,)]),
        "row": ([(m, 1), (m,)], [(groups, 1, n), (groups, n)]),
        "1x32": (
            [(m, k // 32), banded_shape(m, groups, -(-k // 32))],
            [(groups, k // 32, n)],
        ),
        "1x128": ([(m, blocks)], []),
        "128x128": ([], [(groups, blocks, -(-n // 128))]),
    }[scaling]


def _fits(scale: torch.Tensor | None, scaling: str, which: int, swizzle: str | None, sizes: _Sizes) -> bool:
    if scale is None:
        return scaling == "tensor"
    if (scaling == _MX) != (scale.dtype in SCALES_OF_32):
        return False
    if swizzle and scaling == _MX and which == 1:
        least = -(-sizes.n // 32) * 32 * (-(-sizes.k // 256) * 8)
        each = scale[0].numel() if scale.dim() > 1 and scale.shape[0] == sizes.groups else 0
        return scale.is_contiguous() and each >= least and each % 256 == 0
    return (scaling == "tensor" and scale.numel() == 1) or tuple(scale.shape) in _shapes(scaling, sizes)[
        which
    ]


def _pair(where, formats, scale_a, scale_b, recipe, swizzle, sizes) -> tuple[str, str]:
    """The scalings of a and b."""
    candidates = _BUILT[formats]
    if recipe is not None:
        wanted = tuple(recipe) if isinstance(recipe, (tuple, list)) else (recipe, recipe)
        if wanted not in candidates:
            single = sorted({first for first, second in candidates if first == second})
            allowed = ", ".join(f"({first!r}, {second!r})" for first, second in candidates)
            raise ValueError(
                f"{where}: there is no kernel for the recipe {recipe!r} of a of {formats[0]} and b of {formats[1]}; allowed: "
                f"{', '.join(map(repr, single))}{', ' if single else ''}None, or a pair, a's and b's: {allowed}"
            )
        candidates = (wanted,)
    if swizzle is not None and (swizzle != "shuffled" or all(second != _MX for _, second in candidates)):
        raise ValueError(
            f"{where}: swizzle is {swizzle!r}; allowed: None, and 'shuffled' of a scale_b of 32 of K, the recipe '1x32'"
        )
    for pair in candidates:
        if _fits(scale_a, pair[0], 0, swizzle, sizes) and _fits(scale_b, pair[1], 1, swizzle, sizes):
            return pair
    allowed = "; ".join(
        f"{pair}: {_shapes(pair[0], sizes)[0][0]} and {_shapes(pair[1], sizes)[1][0]}" for pair in candidates
    )
    given = "scale_a is None" if scale_a is None else f"scale_a has shape {tuple(scale_a.shape)}"
    dtypes = " and ".join(str(scale.dtype) for scale in (scale_a, scale_b) if scale is not None)
    m, k, groups, n = sizes
    raise ValueError(
        f"{where}: {given} and scale_b {tuple(scale_b.shape)}, of {dtypes}; allowed with a "
        f"{(m, k)} and b {(groups, k, n)}: {allowed}; 'tensor' also one element; '1x32' of torch.uint8 or float8_e8m0fnu"
        f"{', shuffled: whole blocks for each group' if swizzle else ''}, others of float32"
    )
