# SPDX-License-Identifier: MIT
"""Quantization to 8- and 6-bit floats, 8-bit integers and the MX formats, with a name for every choice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from . import _backend
from ._arguments import check_choices, check_dtype_and_device, check_flag, check_tensor, number
from ._call import call
from .activation import GATES, bound_argument, check_gate, constants_of

INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

Format = Literal["fp8", "bf8", "fp6", "bf6", "int8", "mxfp8", "mxfp6", "mxbf6", "mxfp4"]
ScaleRule = Literal["maximum", "floor", "even", "half_up", "round_up", "ceil"]

# The 8-bit floats that each target's instructions convert to (CDNA3 and CDNA4 ISA manuals, V_CVT_PK_FP8_F32, V_CVT_PK_BF8_F32).
_DTYPES = {
    ("fp8", "gfx942"): torch.float8_e4m3fnuz,
    ("bf8", "gfx942"): torch.float8_e5m2fnuz,
    ("fp8", "gfx950"): torch.float8_e4m3fn,
    ("bf8", "gfx950"): torch.float8_e5m2,
}
_CODES = {"fp8": 0, "bf8": 1, "int8": 2, "mxfp8": 0, "mxfp4": 3, "fp6": 4, "bf6": 5, "mxfp6": 4, "mxbf6": 5}
# For 6-bit formats: the number of fraction bits, and the exponent of the least normal number.
_SIX_BITS = {"fp6": (3, 0), "bf6": (2, -2), "mxfp6": (3, 0), "mxbf6": (2, -2)}
_LAYOUTS = {"rows": 0, "columns": 1, "shuffled": 2}
_MX_GROUP = 32
_BLOCK = (128, 128)
# Thresholds of the mantissa (23 bits) from which the power of two is one larger, or that of the format's largest code.
_MANTISSA = 1 << 23
_THRESHOLDS = {
    "floor": _MANTISSA,
    "even": 3 * _MANTISSA // 4,
    "half_up": _MANTISSA // 2,
    "round_up": None,
    "ceil": 1,
}
# The exponent of the largest code and its mantissa.
_LARGEST_MX = {"mxfp8": (8, 1.75), "mxfp6": (2, 1.875), "mxbf6": (4, 1.75), "mxfp4": (2, 1.5)}
# For 8-bit floats, whose scales of tensors and rows may be powers of two: the exponent of the largest code and its mantissa.
_LARGEST = {
    torch.float8_e4m3fnuz: (7, 1.875),
    torch.float8_e4m3fn: (8, 1.75),
    torch.float8_e5m2fnuz: (15, 1.75),
    torch.float8_e5m2: (15, 1.75),
}


@dataclass(frozen=True)
class QuantSpec:
    """How `quantize` represents a tensor: x is approximately code * scale, where codes are the quantized values.

    format       "fp8": e4m3fnuz on gfx942, e4m3fn on gfx950; "bf8": e5m2fnuz, e5m2; "int8"; "mxfp8": e4m3fn (gfx950) and
                 "mxfp4": e2m1, two to a byte, the first in its low half, both in groups of 32 columns with a power-of-two scale.
                 "fp6", "bf6": e2m3 and e3m2, 32 codes in 24 bytes, the first in the lowest bits; "mxfp6", "mxbf6": in such groups
    granularity  what shares a scale: "tensor", "row", a number of columns, 32, 64 or 128, or (128, 128), blocks of rows and columns
                 of a matrix (DeepSeek's weights), the last ones smaller. MX formats: 32; "fp6" and "bf6": "tensor" or "row"
    scale_rule   "maximum": the largest magnitude over the largest code, in float32. "round_up" of "fp8" and "bf8" with granularity
                 "tensor" or "row": the least power of two for which no code exceeds the largest one (2^-127 for zeros); it has no
                 floor, scale_bound or zero_scale. For MX formats and a largest magnitude m 2^E with 1 <= m < 2, the exponent is
                 E - e (e = 8 for mxfp8, 4 for mxbf6, 2 for mxfp6 and mxfp4), and one more: "floor" never, "even" for m >= 1.75,
                 "half_up" for m >= 1.5, "round_up" where the largest code would be exceeded (m > 1.75 for mxfp8 and mxbf6, 1.875
                 for mxfp6, 1.5 for mxfp4), "ceil" for m > 1
    rounding     how ties are rounded: "even"; for int8 also "truncate", for mxfp4 also "away"
    floor        lower bound of the largest magnitude, such as AITER's 1e-10 for groups
    scale_bound  upper bound of the largest magnitude (AITER's scale_ub); values above it are clamped
    zero_scale   the scale of zeros, where the floor is 0
    layout       of the scales of groups: "rows", "columns" (transposed in memory), or for MX formats "shuffled", the order of the
                 scaled matrix instructions (AITER's e8m0_shuffle): rows padded to 256 and groups to 8, with scales of 1. With
                 "shuffled", 6-bit codes, whatever their scales, are in the order of `scaled_matmul`'s kernels (docs/scaled_gemm.md),
                 which stores parts of all rows consecutively: they are one tensor, and no row of it corresponds to a row of x

    Values are multiplied by 1 / scale, not divided, and clamped to the largest code. A NaN makes its scale and codes NaN (for int8, 0).
    """

    format: Format = "fp8"
    granularity: Literal["tensor", "row"] | int | tuple[int, int] = "row"
    scale_rule: ScaleRule | None = None
    rounding: Literal["even", "away", "truncate"] = "even"
    floor: float = 0.0
    scale_bound: float = math.inf
    zero_scale: float = 1.0
    layout: Literal["rows", "columns", "shuffled"] = "rows"

    def __post_init__(self) -> None:
        where = "hipkittens.QuantSpec"
        mx, six_bits = self.format in _LARGEST_MX, self.format in _SIX_BITS
        if self.format not in _CODES:
            raise ValueError(f"{where}: format is {self.format!r}; allowed: {_listed(_CODES)}")
        if mx and self.granularity != _MX_GROUP and self.granularity == "row":
            object.__setattr__(self, "granularity", _MX_GROUP)
        granularities = ("tensor", "row", 32, 64, 128, _BLOCK)
        if mx or six_bits:
            granularities = (_MX_GROUP,) if mx else granularities[:2]
        if self.granularity not in granularities:
            raise ValueError(
                f"{where}: granularity is {self.granularity!r}; allowed with {self.format!r}: {_listed(granularities)}"
            )
        if self.scale_rule is None:
            object.__setattr__(self, "scale_rule", "even" if mx else "maximum")
        rules = _THRESHOLDS if mx else ("maximum",)
        if self.format in ("fp8", "bf8") and isinstance(self.granularity, str):
            rules = ("maximum", "round_up")
        if self.scale_rule not in rules:
            raise ValueError(
                f"{where}: scale_rule is {self.scale_rule!r}; allowed with {self.format!r} and granularity "
                f"{self.granularity!r}: {_listed(rules)}"
            )
        roundings = {"int8": ("even", "truncate"), "mxfp4": ("even", "away")}.get(self.format, ("even",))
        if self.rounding not in roundings:
            raise ValueError(
                f"{where}: rounding is {self.rounding!r}; allowed with {self.format!r}: {_listed(roundings)}"
            )
        layouts = (
            ("rows",)
            if not isinstance(self.granularity, int)
            else ("rows", "columns", "shuffled")[: 3 if mx else 2]
        )
        if six_bits:
            layouts = ("rows", "shuffled")
        if self.layout not in layouts:
            raise ValueError(
                f"{where}: layout is {self.layout!r}; allowed with {self.format!r} and granularity {self.granularity!r}: "
                f"{_listed(layouts)}"
            )
        for name in ("floor", "zero_scale", "scale_bound"):
            if not number(where, name, getattr(self, name)) >= 0.0:
                raise ValueError(f"{where}: {name} is {getattr(self, name)}; it must be 0 or more")
            if (mx or self.scale_rule != "maximum") and getattr(self, name) != type(
                self
            ).__dataclass_fields__[name].default:
                what = "MX formats" if mx else "scales that are powers of two"
                raise ValueError(f"{where}: {name} is {getattr(self, name)}; {what} have none")


@_backend.interruptible
def quantize(
    x: torch.Tensor,
    spec: QuantSpec,
    scale: torch.Tensor | None = None,
    *,
    smooth: torch.Tensor | None = None,
    smooth_ids: torch.Tensor | None = None,
    entries: torch.Tensor | None = None,
    choices: int = 1,
    places: torch.Tensor | None = None,
    codes_of_tokens: bool = False,
    offs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize x to 8-, 6- or 4-bit values with scales, as described by a QuantSpec; returns (codes, scales).

    - `x`: (..., N), bfloat16, float16 or float32; (..., M, N) for blocks, where each matrix has its own blocks.
    - `spec`: the format, the granularity of scales, rounding and layout.
    - `scale`: one float32 element that is used instead, with granularity "tensor"; it is returned.
    - `smooth`: float32 (N,) or (E, N), multiplies x first, in float32 (SmoothQuant). For scales of rows and of groups.
    - `smooth_ids`: int32 or int64 (...), the row of smooth (E, N) for each row of x, such as the tokens' experts. A row with an id that is
      negative or not below E has the codes and scales of a row of zeros. To quantize tokens x (T, N) for each of the experts ids (T, k)
      that they are routed to, use x.expand(k, T, N) with ids.t().
    - `entries`: int32 (M,), rows of x (T, N) that are quantized instead of x, in this order: row i is x[entries[i] // choices], as in
      `expert_sort`, and a row of zeros if entries[i] is outside 0 .. T choices - 1. The codes and scales are those of `expert_gather`'s
      result, which is not written. For scales of rows and of groups; smooth_ids are then (M,).
    - `choices`: the number of choices of each row of x, for entries.
    - `places`: int32 (T, choices), the row of each choice, out of range if it has none, as returned by `expert_sort` with layout "ragged"
      together with these entries; as many as there are entries. The same codes and scales in less time: a row of x is read and quantized
      once for all its choices (for 16-bit x with a multiple of 8 columns, rounding "even", 8- and 4-bit codes, without smooth). Rows for
      which places contradict entries are not written.
    - `codes_of_tokens`: with places: codes are those of x, (T, N), and scales those of entries, as `grouped_matmul` with entries takes them.
    - `offs`: int32 (G,), ends of groups of the rows of x (M, N), or of those of entries, as in `grouped_matmul`; for MX formats with layout
      "shuffled". Scales are then its scale_a: (32 (ceil(M / 32) + G), 8 ceil(N / 256)) in bands of 32 rows that begin with each group. Row
      r of group g, whose first row is f, is row 32 (f // 32 + g) + r - f of the scales; rows in no group are not written. offs stays on the
      device.

    codes have the shape of x and the dtype of the format; for mxfp4 they are (..., N / 2), and for 6 bits, where N is a multiple of 32,
    (..., 3 N / 4), both torch.uint8. scales are float32, or for MX formats torch.uint8 bytes of e8m0: 2 ** (byte - 127), 255 for NaN. Their
    shape is () for a tensor, (..., 1) for rows, (..., ceil(N / group)) for groups and (..., ceil(M / 128), ceil(N / 128)) for blocks;
    "shuffled" ones have two dimensions, padded.

    Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.quantize"
    check_tensor(where, "x", x)
    check_dtype_and_device(where, "x", x, INPUT_DTYPES, "x", x)
    check_spec(where, spec)
    if x.dim() == 0:
        raise ValueError(f"{where}: x has shape (); it needs at least 1 dimension")
    if x.shape[-1] == 0:
        raise ValueError(f"{where}: x has shape {tuple(x.shape)}; its rows need 1 element or more")
    if spec.granularity == _BLOCK and x.dim() < 2:
        raise ValueError(f"{where}: x has shape {tuple(x.shape)}; blocks need a matrix, 2 dimensions or more")
    check_codes(where, spec, x, x.shape[-1], scale)
    leading = _leading(where, spec, x, entries, choices)
    _check_places(where, x, entries, choices, places)
    check_flag(where, "codes_of_tokens", codes_of_tokens)
    if codes_of_tokens and (places is None or not reads_tokens_once(x, spec, choices) or smooth is not None):
        raise ValueError(
            f"{where}: codes_of_tokens is True for x {tuple(x.shape)} of {x.dtype} with {choices} choices; it needs places, bfloat16 or "
            "float16 with a number of columns that is a multiple of 8 (at most 8192 with scales of rows), at "
            "most 64 choices, rounding 'even', formats of 8 or 4 bits, and no smooth: leave it False"
        )
    _check_smooth(where, spec, x, smooth, smooth_ids, leading)
    offs = _checked_offs(where, spec, x, offs)
    _backend.check_device(where, "x", x)
    if _backend.uses_torch():
        raise ValueError(f"{where}: HIPKITTENS_BACKEND is torch, which has no such operation; unset it")
    dtype_of(spec.format, x.device, where)
    if smooth is not None:
        smooth = smooth.reshape(-1, x.shape[-1])
    if smooth_ids is not None and smooth_ids.dtype != torch.int32:
        smooth_ids = smooth_ids.clamp(-1, smooth.shape[0]).to(torch.int32)
    codes, scales = call(
        "quantize",
        x,
        scale,
        smooth,
        smooth_ids,
        entries,
        places,
        offs,
        choices,
        codes_of_tokens,
        *options_of(spec, x.device),
    )
    return as_described(codes, scales, spec, leading, x.shape[-1], scale)


def reads_tokens_once(x: torch.Tensor, spec: QuantSpec, choices: int) -> bool:
    """Whether a kernel quantizes each row of x (T, N) once for all its choices: plan_of_tokens of csrc/kernels/quantize/plan.cpp."""
    most_columns = 8192 if spec.granularity == "row" else math.inf
    return (
        x.dtype in (torch.bfloat16, torch.float16)
        and x.shape[-1] % 8 == 0
        and x.shape[-1] <= most_columns
        and choices <= 64
        and spec.rounding == "even"
        and spec.format not in _SIX_BITS
    )


@_backend.interruptible
def gated_activation_quantize(
    x: torch.Tensor,
    spec: QuantSpec,
    kind: str = "silu",
    *,
    other: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    limit: float | None = None,
    alpha: float | None = None,
    scale: torch.Tensor | None = None,
    offs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply a gated activation and quantize its result, in one launch; returns (codes, scales).

    The codes and scales are bit-identical to quantize(gated_activation(x, kind, other=other, bias=bias, limit=limit, alpha=alpha), spec,
    scale, offs=offs), since the gated value is rounded to x's dtype here as well.

    Arguments are those of the two functions, except that granularity (128, 128) has no kernel, and that granularity "tensor" requires
    `scale`: the largest magnitude is not known before the whole tensor has been computed. Not differentiable.

    Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.gated_activation_quantize"
    check_gate(where, x, kind, other, limit, alpha, bias)
    if x.dim() == 0:
        raise ValueError(f"{where}: x has shape (); it needs at least 1 dimension")
    columns = x.shape[-1] // (2 if other is None else 1)
    check_spec_of_rows(where, spec, "gated_activation")
    if columns == 0:
        raise ValueError(f"{where}: x has shape {tuple(x.shape)}; its rows need 1 element or more")
    check_codes(where, spec, x, columns, scale)
    if spec.granularity == "tensor" and scale is None:
        raise ValueError(
            f"{where}: granularity is 'tensor' and scale is None; give the scale, or call quantize on the result of "
            "gated_activation"
        )
    offs = _checked_offs(where, spec, x, offs)
    _backend.check_device(where, "x", x)
    if _backend.uses_torch():
        raise ValueError(f"{where}: HIPKITTENS_BACKEND is torch, which has no such operation; unset it")
    dtype_of(spec.format, x.device, where)
    gate = GATES.index(kind), *constants_of(kind, limit, alpha)
    codes, scales = call(
        "gated_activation_quantize", x, other, bias, scale, offs, *gate, *options_of(spec, x.device)
    )
    return as_described(codes, scales, spec, x.shape[:-1], columns, scale)


def check_spec(where: str, spec: QuantSpec) -> None:
    if not isinstance(spec, QuantSpec):
        raise TypeError(f"{where}: spec is {type(spec).__name__}; it must be a hipkittens.QuantSpec")


def check_spec_of_rows(where: str, spec: QuantSpec, instead: str) -> None:
    """check_spec, and ValueError for scales that rows share; `instead` names the result that can be quantized by a call of its own."""
    check_spec(where, spec)
    if spec.granularity == _BLOCK:
        raise ValueError(
            f"{where}: granularity is (128, 128), which no row can be quantised by alone; call quantize on the result of {instead}"
        )


def _leading(where: str, spec: QuantSpec, x: torch.Tensor, entries, choices: int) -> torch.Size:
    """The shape of codes without its last dimension. Raises TypeError or ValueError for entries that no kernel supports."""
    check_choices(where, choices)
    if entries is None:
        if choices != 1:
            raise ValueError(
                f"{where}: choices is {choices} and there are no entries; pass them, or leave it 1"
            )
        return x.shape[:-1]
    check_tensor(where, "entries", entries)
    check_dtype_and_device(where, "entries", entries, (torch.int32,), "x", x)
    if x.dim() != 2 or entries.dim() != 1:
        raise ValueError(
            f"{where}: x has shape {tuple(x.shape)} and entries {tuple(entries.shape)}; entries number the rows of a matrix: 2 "
            "dimensions and 1"
        )
    if spec.granularity != "row" and not isinstance(spec.granularity, int):
        raise ValueError(
            f"{where}: there are entries and granularity is {spec.granularity!r}; allowed with them: 'row', 32, 64, 128. Or "
            "quantize x[entries // choices]"
        )
    return entries.shape


def _check_places(where: str, x: torch.Tensor, entries, choices: int, places) -> None:
    if places is None:
        return
    check_tensor(where, "places", places)
    check_dtype_and_device(where, "places", places, (torch.int32,), "x", x)
    if entries is None or tuple(places.shape) != (x.shape[0], choices) or places.numel() != len(entries):
        wanted = "entries" if entries is None else f"{x.shape[0] * choices} entries"
        raise ValueError(
            f"{where}: places has shape {tuple(places.shape)}; it needs ({x.shape[0]}, {choices}), the row of each choice of x, and {wanted}"
        )


def _check_smooth(where: str, spec: QuantSpec, x: torch.Tensor, smooth, ids, leading: torch.Size) -> None:
    if smooth is None:
        if ids is not None:
            raise ValueError(f"{where}: there are smooth_ids and no smooth; pass the factors, or neither")
        return
    check_tensor(where, "smooth", smooth)
    check_dtype_and_device(where, "smooth", smooth, (torch.float32,), "x", x)
    allowed = f"({x.shape[-1]},)" if ids is None else f"(experts, {x.shape[-1]})"
    if smooth.dim() != (1 if ids is None else 2) or smooth.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"{where}: smooth has shape {tuple(smooth.shape)}; it must be {allowed} with{'out' if ids is None else ''} smooth_ids"
        )
    if spec.granularity != "row" and not isinstance(spec.granularity, int):
        raise ValueError(
            f"{where}: there is smooth and granularity is {spec.granularity!r}; allowed with it: 'row', 32, 64, 128. Or quantize "
            "x * smooth"
        )
    if ids is None:
        return
    check_tensor(where, "smooth_ids", ids)
    check_dtype_and_device(where, "smooth_ids", ids, (torch.int32, torch.int64), "x", x)
    if ids.shape != leading:
        raise ValueError(
            f"{where}: smooth_ids has shape {tuple(ids.shape)}; it must be that of the codes without its last dimension, "
            f"{tuple(leading)}"
        )


def _checked_offs(
    where: str, spec: QuantSpec, x: torch.Tensor, offs: torch.Tensor | None
) -> torch.Tensor | None:
    """Ends of groups in the form that operators accept. Raises TypeError or ValueError if rows of x cannot have scales in bands."""
    if offs is None:
        return None
    check_tensor(where, "offs", offs)
    check_dtype_and_device(where, "offs", offs, (torch.int32,), "x", x)
    if spec.format not in _LARGEST_MX or spec.layout != "shuffled":
        raise ValueError(
            f"{where}: offs is given with format {spec.format!r} and layout {spec.layout!r}; groups have bands of scales of the MX "
            "formats with layout 'shuffled': leave offs out, or choose such a QuantSpec"
        )
    if x.dim() != 2 or offs.dim() != 1:
        raise ValueError(
            f"{where}: x has shape {tuple(x.shape)} and offs {tuple(offs.shape)}; groups are of the rows of a matrix, and offs has the "
            "end of each: 2 dimensions and 1"
        )
    return offs.contiguous()


def check_codes(
    where: str, spec: QuantSpec, x: torch.Tensor, columns: int, scale: torch.Tensor | None
) -> None:
    """Raises TypeError or ValueError if rows of so many columns cannot be quantized to this format, or scale does not fit them."""
    if spec.format == "mxfp4" and columns % 2:
        raise ValueError(
            f"{where}: rows of x have {columns} elements; mxfp4 has two in a byte and needs an even number"
        )
    if spec.format in _SIX_BITS and columns % 32:
        raise ValueError(
            f"{where}: rows of x have {columns} elements; {spec.format} has 32 in 24 bytes and needs a multiple of 32: pad with zeros"
        )
    if scale is not None:
        check_tensor(where, "scale", scale)
        check_dtype_and_device(where, "scale", scale, (torch.float32,), "x", x)
        if spec.granularity != "tensor" or scale.numel() != 1:
            raise ValueError(
                f"{where}: scale has shape {tuple(scale.shape)} and granularity is {spec.granularity!r}; a scale that is given "
                "has one element and is the tensor's"
            )


def options_of(
    spec: QuantSpec, device: torch.device
) -> tuple[int, int, int, float, float, float, int, int, bool]:
    """A spec as arguments of the operators, for tensors on a device: csrc/torch/quantization.h."""
    group = {"tensor": 0, "row": -1, _BLOCK: -2}.get(spec.granularity, spec.granularity)
    power, threshold = -1, 0
    if spec.format in _LARGEST_MX or spec.scale_rule == "round_up":
        mx = spec.format in _LARGEST_MX
        power, largest = _LARGEST_MX[spec.format] if mx else _LARGEST[dtype_of(spec.format, device)]
        threshold = _THRESHOLDS[spec.scale_rule]
        if threshold is None:
            threshold = int((largest - 1) * _MANTISSA) + 1
    return (
        _CODES[spec.format],
        group,
        _LAYOUTS[spec.layout if isinstance(spec.granularity, int) else "rows"],
        spec.floor,
        bound_argument(spec.scale_bound),
        spec.zero_scale,
        power,
        threshold,
        spec.rounding != "even",
    )


def as_described(
    codes: torch.Tensor,
    scales: torch.Tensor,
    spec: QuantSpec,
    leading: torch.Size,
    columns: int,
    scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of a tensor (*leading, columns), as operators return them, in the dtypes and shapes that `quantize`
    describes.
    """
    dtype = dtype_of(spec.format, codes.device)
    codes = codes if dtype == torch.uint8 else codes.view(dtype)
    if spec.format in _SIX_BITS and spec.layout == "shuffled":
        codes = shuffled_six_bits(codes)
    if scale is not None:
        return codes, scale
    if spec.format not in _LARGEST_MX and spec.scale_rule == "round_up":
        scales = e8m0_in_float(scales)
    if spec.granularity == "tensor":
        return codes, scales.reshape(()) if scales.numel() else scales.new_zeros(())
    if spec.layout == "shuffled" and spec.granularity == _MX_GROUP:
        return codes, scales
    if spec.granularity == _BLOCK:
        return codes, scales.reshape(*leading[:-1], -(-leading[-1] // 128), -(-columns // 128))
    groups = 1 if spec.granularity == "row" else -(-columns // spec.granularity)
    if spec.layout == "columns" and scales.dim() == 2:
        return codes, scales.t().view(*leading, groups) if leading else scales[:, 0]
    return codes, scales.reshape(*leading, groups)


def dtype_of(format: Format, device: torch.device, where: str = "hipkittens.quantize") -> torch.dtype:
    """The dtype of a format's codes on a device: gfx942 and gfx950 have different 8-bit floats."""
    if format == "int8":
        return torch.int8
    if format == "mxfp4" or format in _SIX_BITS:
        return torch.uint8
    target = _backend.arch_of(device)
    if format == "mxfp8":
        if target != "gfx950":
            raise ValueError(
                f"{where}: format 'mxfp8' has e4m3fn codes, which {target} has not; use gfx950, or 'fp8'"
            )
        format = "fp8"
    return _DTYPES[format, target]


def dequantize(
    codes: torch.Tensor,
    scales: torch.Tensor,
    spec: QuantSpec,
    dtype: torch.dtype,
    *,
    smooth: torch.Tensor | None = None,
    smooth_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """codes * scales in float32, rounded to dtype: the inverse of `quantize` with this spec, by PyTorch operations on any device.

    `codes` and `scales` are as returned by `quantize`, but not "shuffled". `smooth` and `smooth_ids` are those passed to `quantize`: values
    are divided by the factors again, and rows without factors are zeros.
    """
    where = "hipkittens.dequantize"
    check_tensor(where, "codes", codes)
    check_tensor(where, "scales", scales)
    if spec.layout == "shuffled":
        raise ValueError(f"{where}: layout is 'shuffled'; quantize with 'rows' to read scales back")
    if spec.format == "mxfp4":
        table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=codes.device)
        halves = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).long()
        values = table[halves & 7] * torch.where(halves >= 8, -1.0, 1.0)
    elif spec.format in _SIX_BITS:
        values = six_bits_in_float(codes, spec.format)
    else:
        values = codes.float()
    if spec.format in _LARGEST_MX:
        scales = e8m0_in_float(scales)
    if isinstance(spec.granularity, int):
        scales = scales.reshape(*codes.shape[:-1], -1) if spec.layout == "columns" else scales
        scales = scales.repeat_interleave(spec.granularity, -1)[..., : values.shape[-1]]
    if spec.granularity == _BLOCK:
        for axis in (-2, -1):
            scales = scales.repeat_interleave(128, axis).narrow(axis, 0, values.shape[axis])
    values = values * scales
    if smooth is None:
        return values.to(dtype)
    if smooth_ids is None:
        return (values / smooth).to(dtype)
    known = (smooth_ids >= 0) & (smooth_ids < smooth.shape[0])
    if not smooth.shape[0]:
        return torch.zeros_like(values, dtype=dtype)
    factors = smooth[torch.where(known, smooth_ids, 0).long()]
    return torch.where(known.unsqueeze(-1), values / factors, 0.0).to(dtype)


def e8m0_in_float(scales: torch.Tensor) -> torch.Tensor:
    """Bytes of e8m0 as float32. torch.ldexp would compute it on the current GPU, not on the one that holds the bytes (torch 2.11)."""
    return scales.view(torch.float8_e8m0fnu).to(torch.float32)


def six_bits_in_float(codes: torch.Tensor, format: str) -> torch.Tensor:
    """The values (..., N) of bytes (..., 3 N / 4) of "fp6" or "bf6", in float32."""
    first, second, third = codes.reshape(*codes.shape[:-1], -1, 3).to(torch.int32).unbind(-1)
    word = first | second << 8 | third << 16
    numbers = torch.stack([word >> 6 * i & 63 for i in range(4)], -1).flatten(-2)
    bits, least = _SIX_BITS[format]
    exponent, fraction = (numbers & 31) >> bits, numbers & (1 << bits) - 1
    magnitude = torch.where(exponent > 0, fraction + (1 << bits), fraction) * torch.exp2(
        (exponent.clamp(min=1) - 1 + least - bits).float()
    )
    return torch.where(numbers >= 32, -magnitude, magnitude)


def shuffled_six_bits(codes: torch.Tensor) -> torch.Tensor:
    """Rows of 6-bit codes, in whole groups of 24 bytes, in the order of the GEMM kernels.

    For the first 128 codes of all rows: the first 16 bytes of every 24, row by row, then the last 8; then the same for the next 128 codes.
    Rows are padded with zeros. Returns bytes (..., 96 ceil(N / 128)), of which no row corresponds to a row of codes.
    """
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % 96))
    blocks = padded.reshape(-1, padded.shape[-1] // 96, 4, 24).transpose(0, 1)
    parts = (blocks[..., :16].flatten(1), blocks[..., 16:].flatten(1))
    return torch.cat(parts, 1).reshape(padded.shape)


def _listed(names) -> str:
    return ", ".join(map(repr, names))
