# SPDX-License-Identifier: MIT
"""Mixture-of-experts layers with 8- and 4-bit weights: which scales these have, and how activations are quantized."""

from __future__ import annotations

from typing import NamedTuple

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_gets_no_gradient, check_tensor
from ._panels import as_b
from .activation import activation as activate
from .activation import gated_activation
from .grouped import gathers_rows_of, grouped_matmul
from .quantization import QuantSpec, dtype_of, gated_activation_quantize, quantize, reads_tokens_once
from .scaled_gemm import check_has_matrix
from .scaled_grouped import CODES, FLOAT4, SCALES_OF_32, length

WEIGHTS = CODES
Recipe = str | tuple[str | None, str]

_MX = "1x32"
# How activations are quantized by the first word of a recipe, for 8- and 4-bit weights; None: not at all.
_SPECS: dict[str | None, QuantSpec | None] = {
    None: None,
    "row": QuantSpec("fp8", "row"),
    "tensor": QuantSpec("fp8", "tensor"),
    "1x128": QuantSpec("fp8", 128),
    "mxfp8": QuantSpec("mxfp8", layout="shuffled"),
}
_SPECS_OF_INT8 = {each: QuantSpec("int8", each) for each in ("row", "tensor")}
_SPECS_OF_MX = {
    "fp8": QuantSpec("mxfp8", layout="shuffled"),
    "fp4": QuantSpec("mxfp4", layout="shuffled"),
}
# The supported recipes: how activations and how weights are scaled. The first that fits is inferred from shapes.
_BUILT: dict[str, tuple[tuple[str | None, str], ...]] = {
    "fp8": (
        ("row", "row"),
        ("row", "tensor"),
        ("1x128", "128x128"),
        ("tensor", "tensor"),
        ("tensor", "row"),
        (_MX, _MX),
    ),
    "int8": (("row", "row"), ("row", "tensor"), ("tensor", "tensor"), ("tensor", "row")),
    "fp4": ((None, _MX), ("row", _MX), ("tensor", _MX), ("mxfp8", _MX), (_MX, _MX)),
}


class Scales(NamedTuple):
    """The scales of both weights in grouped_matmul's form for b, how activations are quantized, if they are, and each expert's factors of
    the columns of those that are.
    """

    w1: torch.Tensor
    w2: torch.Tensor
    spec: QuantSpec | None
    recipe: tuple[str, str]
    swizzle: str | None
    smooth1: torch.Tensor | None
    smooth2: torch.Tensor | None

    def offs_of_bands(self, ends: torch.Tensor) -> torch.Tensor | None:
        """The offs argument for quantizing rows of groups with these ends: scales of 32 are written where the product expects them."""
        return ends if self.recipe[0] == _MX else None


def columns(weight: torch.Tensor) -> int:
    """The number of codes in a row of weights."""
    return length("fp4" if weight.dtype in FLOAT4 else "fp8", weight.shape[-1])


def checked(
    where: str,
    tensors: dict[str, torch.Tensor | None],
    scale_w1: torch.Tensor | None,
    scale_w2: torch.Tensor | None,
    recipe: Recipe | None,
    swizzle: str | None,
    smooth1: torch.Tensor | None = None,
    smooth2: torch.Tensor | None = None,
) -> Scales:
    """Raises for scales that no kernel supports, weights of another target, and tensors that require a gradient.

    tensors  arguments of the layer by name, of which w1 (E, N, K) and w2 have the scales
    """
    scales = {"w1": scale_w1, "w2": scale_w2}
    x = tensors["x"]
    for name, scale in scales.items():
        if scale is None:
            raise ValueError(f"{where}: scale_{name} is None; weights of 8 and 4 bits have scales: give both")
        check_tensor(where, f"scale_{name}", scale)
        check_dtype_and_device(where, f"scale_{name}", scale, (torch.float32, *SCALES_OF_32), "x", x)
        check_gets_no_gradient(where, f"scale_{name}", scale)
    for name, value in tensors.items():
        check_gets_no_gradient(where, name, value)
    weights = {name: tensors[name] for name in scales}
    format = _format(where, weights)
    pair = _pair(where, format, weights, scales, recipe, swizzle)
    if pair[0] == _MX:
        spec = _SPECS_OF_MX[format]
    else:
        spec = (_SPECS_OF_INT8 if format == "int8" else _SPECS)[pair[0]]
    for name, smooth in (("w1", smooth1), ("w2", smooth2)):
        if smooth is not None:
            _check_smooth(where, f"smooth{name[1]}", smooth, weights[name], spec, pair)
    if spec is not None and _backend.uses_torch():
        raise ValueError(f"{where}: HIPKITTENS_BACKEND is torch, which quantises nothing; unset it")
    if pair[1] == _MX:
        _check_mx(where, x, weights, spec)
    if format == "fp8" and x.device.type != "meta":
        fp8 = dtype_of("fp8", x.device, where)
        for name, weight in weights.items():
            if weight.dtype != fp8:
                raise TypeError(
                    f"{where}: {name} is {weight.dtype}; {_backend.arch_of(x.device)} multiplies {fp8}, whose codes have "
                    "other values: quantise for this target"
                )
    ready = (_as_of_b(scales[name], pair[1], weights[name], swizzle) for name in scales)
    return Scales(*ready, spec, _recipe_of_products(pair), swizzle, smooth1, smooth2)


def _format(where: str, weights: dict[str, torch.Tensor]) -> str:
    of_each = {
        name: "fp4" if weight.dtype in FLOAT4 else "int8" if weight.dtype == torch.int8 else "fp8"
        for name, weight in weights.items()
    }
    if len(set(of_each.values())) > 1:
        dtypes = " and ".join(f"{name} is {weight.dtype}" for name, weight in weights.items())
        raise TypeError(f"{where}: {dtypes}; both weights need codes of one format")
    return of_each["w1"]


def _check_smooth(where: str, name: str, smooth, weight: torch.Tensor, spec: QuantSpec | None, pair) -> None:
    check_tensor(where, name, smooth)
    check_dtype_and_device(where, name, smooth, (torch.float32,), "x", weight)
    check_gets_no_gradient(where, name, smooth)
    wanted = weight.shape[0], columns(weight)
    if tuple(smooth.shape) != wanted:
        raise ValueError(
            f"{where}: {name} has shape {tuple(smooth.shape)}; it needs {wanted}, a factor of each column for each expert"
        )
    if spec is None or spec.granularity == "tensor":
        raise ValueError(
            f"{where}: {name} is given and the recipe is {pair}; only rows that are quantised with scales of their own are multiplied "
            "by factors of columns: choose such a recipe, or leave it out"
        )


def _check_mx(where: str, x: torch.Tensor, weights: dict[str, torch.Tensor], spec: QuantSpec | None) -> None:
    for name, weight in weights.items():
        if columns(weight) % 32:
            raise ValueError(
                f"{where}: rows of {name} have {columns(weight)} codes; scales of 32 need a multiple of 32: pad with zeros and 127"
            )
    if spec is None and x.dtype != torch.bfloat16:
        raise TypeError(
            f"{where}: x is {x.dtype}; weights of 4 bits are multiplied with torch.bfloat16: convert x, or have its rows quantised "
            "(recipe '1x32', or ('mxfp8', '1x32'))"
        )
    if spec is not None and x.device.type != "meta":
        check_has_matrix(where, x, "rows that are quantised for such weights need")


def _recipe_of_products(pair: tuple[str | None, str]) -> tuple[str, str]:
    return {None: "tensor", "mxfp8": _MX}.get(pair[0], pair[0]), pair[1]


def takes_tokens(scales: Scales, x: torch.Tensor) -> bool:
    """Whether hidden_rows accepts tokens with the entries and places of their choices, instead of rows in the order of experts."""
    if scales.spec is None:
        return gathers_rows_of(x)
    return scales.spec.granularity != "tensor"


def hidden_rows(
    rows: torch.Tensor,
    w1: torch.Tensor,
    ends: torch.Tensor,
    scales: Scales,
    bias,
    entries: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
) -> torch.Tensor:
    """The first GEMM, rounded to the dtype of rows, which are quantized here.

    rows are (rows, K) in the order of experts; or, with entries and places (T, choices) of `expert_sort`, tokens (T, K).
    """
    choices = 1 if places is None else places.shape[1]
    codes_of_tokens = (
        scales.spec is not None
        and places is not None
        and scales.smooth1 is None
        and gathers_rows_of(rows)  # their codes are no larger
        and reads_tokens_once(rows, scales.spec, choices)
    )
    quantized = _quantized(rows, ends, scales, scales.smooth1, entries, places, codes_of_tokens)
    gathers = codes_of_tokens or scales.spec is None
    of_rows = (entries, choices) if gathers else (None, 1)
    return _product(quantized, w1, ends, scales.w1, scales, bias, rows.dtype, *of_rows)


def gated_rows(
    hidden: torch.Tensor,
    w2: torch.Tensor,
    ends: torch.Tensor,
    scales: Scales,
    bias: torch.Tensor | None,
    *,
    kind: str,
    other: torch.Tensor | None,
    limit: float | None,
    gated: bool,
) -> torch.Tensor:
    """The second GEMM, of the activated results of the first one."""
    if gated and scales.spec is not None and scales.spec.granularity != "tensor" and scales.smooth2 is None:
        offs = scales.offs_of_bands(ends)
        rows = gated_activation_quantize(hidden, scales.spec, kind, other=other, limit=limit, offs=offs)
    else:
        gate = gated_activation(hidden, kind, other=other, limit=limit) if gated else activate(hidden, kind)
        rows = _quantized(gate, ends, scales, scales.smooth2)
    return _product(rows, w2, ends, scales.w2, scales, bias, hidden.dtype)


def _quantized(
    rows, ends, scales, smooth, entries=None, places=None, codes_of_tokens=False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if scales.spec is None:
        return rows, None
    ids = None
    if smooth is not None:
        # A row belongs to the expert in whose range it is; rows past the last one become zeros.
        count = len(rows if entries is None else entries)
        ids = torch.bucketize(torch.arange(count, dtype=ends.dtype, device=ends.device), ends, right=True)
    return quantize(
        rows,
        scales.spec,
        smooth=smooth,
        smooth_ids=ids,
        entries=entries,
        choices=1 if places is None else places.shape[1],
        places=places,
        codes_of_tokens=codes_of_tokens,
        offs=scales.offs_of_bands(ends),
    )


def _product(rows, weight, ends, scale, scales, bias, dtype, entries=None, choices=1) -> torch.Tensor:
    codes, factors = rows
    return grouped_matmul(
        codes,
        as_b(weight),
        ends,
        scale_a=factors,
        scale_b=scale,
        recipe=scales.recipe,
        swizzle=scales.swizzle,
        bias=bias,
        out_dtype=dtype,
        entries=entries,
        choices=choices,
    )


def _shapes(scaling: str, weight: torch.Tensor) -> list[tuple[int, ...]]:
    """The shapes of the scales of weights (E, rows, columns)."""
    experts, rows, _ = weight.shape
    along = columns(weight)
    return {
        "row": [(experts, rows, 1), (experts, rows)],
        "tensor": [(experts, 1, 1), (experts, 1), (experts,)],
        "1x32": [(experts, rows, along // 32)],
        "128x128": [(experts, -(-rows // 128), -(-along // 128))],
    }[scaling]


def _fits(scale: torch.Tensor, scaling: str, weight: torch.Tensor, swizzle: str | None) -> bool:
    if (scaling == _MX) != (scale.dtype in SCALES_OF_32):
        return False
    if scaling == _MX and swizzle:
        return True  # grouped_matmul checks the number of bytes of an expert
    return (scaling == "tensor" and scale.numel() == 1) or tuple(scale.shape) in _shapes(scaling, weight)


def _as_of_b(scale: torch.Tensor, scaling: str, weight: torch.Tensor, swizzle: str | None) -> torch.Tensor:
    experts, rows, _ = weight.shape
    if scaling == "row":
        return scale.reshape(experts, 1, rows)
    if scaling == _MX and swizzle:
        return scale
    return scale.mT if scaling in ("128x128", _MX) else scale.reshape(-1, 1, 1)


def _pair(where, format, weights, scales, recipe, swizzle) -> tuple[str | None, str]:
    candidates = _BUILT[format]
    if recipe is not None:
        wanted = tuple(recipe) if isinstance(recipe, (tuple, list)) else (recipe, recipe)
        if wanted not in candidates:
            allowed = ", ".join(map(str, candidates))
            raise ValueError(
                f"{where}: there is no kernel for the recipe {recipe!r} and weights of {format}; allowed: None, a name of a pair "
                f"of equal ones, or a pair, that of rows of tokens and that of weights: {allowed}"
            )
        candidates = (wanted,)
    if swizzle is not None and (swizzle != "shuffled" or all(second != _MX for _, second in candidates)):
        raise ValueError(
            f"{where}: swizzle is {swizzle!r}; allowed: None, and 'shuffled' of weights' scales of 32, the recipe '1x32'"
        )
    for pair in candidates:
        if all(_fits(scales[name], pair[1], weights[name], swizzle) for name in scales):
            return pair
    scalings = list(dict.fromkeys(second for _, second in candidates))
    for name, scale in scales.items():
        if not any(_fits(scale, scaling, weights[name], swizzle) for scaling in scalings):
            allowed = "; ".join(f"{scaling!r}: {_shapes(scaling, weights[name])[0]}" for scaling in scalings)
            raise ValueError(
                f"{where}: scale_{name} has shape {tuple(scale.shape)} and dtype {scale.dtype}; allowed with {name} "
                f"{tuple(weights[name].shape)}: {allowed}; '1x32' of torch.uint8 or float8_e8m0fnu, others of float32"
            )
    raise ValueError(
        f"{where}: scale_w1 has shape {tuple(scales['w1'].shape)} and scale_w2 {tuple(scales['w2'].shape)}; both weights need "
        "scales of one kind"
    )
