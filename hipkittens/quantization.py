# SPDX-License-Identifier: MIT
"""Quantisation to 8- and 6-bit floats, 8-bit integers and the MX formats, every choice of which has a name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_tensor, number
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
# Of 6 bits: those of the fraction, and the exponent of the least normal number.
_SIX_BITS = {"fp6": (3, 0), "bf6": (2, -2), "mxfp6": (3, 0), "mxbf6": (2, -2)}
_LAYOUTS = {"rows": 0, "columns": 1, "shuffled": 2}
_MX_GROUP = 32
_BLOCK = (128, 128)
# Of mantissas above 1: the first of 23 bits from which the power of two is one larger, or that of the format's largest code.
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
# Of 8-bit floats, whose scales of tensors and rows may be powers of two: the exponent of the largest code and its mantissa.
_LARGEST = {
    torch.float8_e4m3fnuz: (7, 1.875),
    torch.float8_e4m3fn: (8, 1.75),
    torch.float8_e5m2fnuz: (15, 1.75),
    torch.float8_e5m2: (15, 1.75),
}


@dataclass(frozen=True)
class QuantSpec:
    """What `quantize` makes of a tensor; x is about code * scale.

    format       "fp8": e4m3fnuz on gfx942, e4m3fn on gfx950; "bf8": e5m2fnuz, e5m2; "int8"; "mxfp8": e4m3fn (gfx950) and
                 "mxfp4": e2m1, two to a byte, the first in its low half, both in groups of 32 columns whose scale is a power of two.
                 "fp6", "bf6": e2m3 and e3m2, 32 codes in 24 bytes, the first in the lowest bits; "mxfp6", "mxbf6": in such groups
    granularity  what shares a scale: "tensor", "row", a number of columns, 32, 64 or 128, or (128, 128), blocks of rows and columns
                 of a matrix (DeepSeek's weights), the last ones smaller. MX formats: 32; "fp6" and "bf6": "tensor" or "row"
    scale_rule   "maximum": the largest magnitude over the largest code, in float32. "round_up" of "fp8" and "bf8" with granularity
                 "tensor" or "row": the least power of two with which no code passes the largest one (2^-127 of zeros); it has no
                 floor, scale_bound or zero_scale. Of the MX formats, for a largest magnitude
                 m 2^E with 1 <= m < 2, the power E - e (e = 8 of mxfp8, 4 of mxbf6, 2 of mxfp6 and mxfp4), and one more: "floor"
                 never, "even" for m >= 1.75, "half_up" for m >= 1.5, "round_up" where the largest code would be passed (m > 1.75
                 of mxfp8 and mxbf6, 1.875 of mxfp6, 1.5 of mxfp4), "ceil" for m > 1
    rounding     "even"; of int8 also "truncate", of mxfp4 also "away": what half-way cases do
    floor        least largest magnitude, such as AITER's 1e-10 of groups
    scale_bound  largest largest magnitude (AITER's scale_ub); what is above it is clamped
    zero_scale   of zeros, where the floor is 0
    layout       of the scales of groups: "rows", "columns" (transposed in memory), or of MX formats "shuffled", the order of the
                 scaled matrix instructions (AITER's e8m0_shuffle): rows padded to 256 and groups to 8, by scales of 1. With
                 "shuffled" codes of 6 bits, whatever their scales, are in the order of `scaled_matmul`'s kernels (docs/scaled_gemm.md), in
                 which parts of all rows are behind each other: they are one tensor, and no rows of it are those of x

    Values are multiplied by 1 / scale, not divided; clamped to the largest code; a NaN makes its scale and codes NaN (of int8, 0).
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
    offs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x as codes and their scales, as spec says.

    x (..., N) is bfloat16, float16 or float32. codes have the shape of x and the dtype of the format, or of mxfp4 (..., N / 2)
    and of codes of 6 bits (..., 3 N / 4), where 32 divides N, and torch.uint8; scales are float32, of MX formats torch.uint8 bytes of e8m0: 2 ** (byte - 127), 255 for NaN. Shape of
    scales: () of a tensor, (..., 1) of rows, (..., ceil(N / group)) of groups; "shuffled" ones have two dimensions, padded. Of
    blocks x is (..., M, N), each of its matrices has its own, and scales are (..., ceil(M / 128), ceil(N / 128)).
    scale: a float32 tensor of one element that is used instead, with granularity "tensor"; it is returned.

    smooth      float32 (N,) or (E, N): x is multiplied by it first, in float32 (SmoothQuant). For scales of rows and of groups
    smooth_ids  of smooth (E, N), which of its rows each row of x is multiplied by: int32 or int64 (...), such as the tokens'
                experts. A row whose number is negative or not below E has the codes and scales of a row of zeros. To quantise
                tokens x (T, N) for each of the experts ids (T, k) that they go to: x.expand(k, T, N) with ids.t()
    entries     int32 (M,), rows of x (T, N) that are quantised instead of x, in their order: row i is x[entries[i] // choices], as
                `expert_sort` numbers them, and a row of zeros where entries[i] is none of 0 .. T choices - 1. The same codes and
                scales as of `expert_gather`'s result, which is not written. For scales of rows and of groups; smooth_ids are (M,)
    choices     of each row of x, among which entries count
    places      int32 (T, choices), the row of each choice, out of range where it has none, as `expert_sort` returns them of the layout
                "ragged" beside these entries, as many. The same codes and scales, for less: a row of x is read and quantised once for
                all its choices (16-bit x of columns that 8 divides, rounding "even", codes of 8 and 4 bits, without smooth). Places that contradict entries leave rows unwritten
    offs        int32 (G,), ends of groups of the rows of x (M, N), or of those of entries, as `grouped_matmul` takes them; of MX formats with layout "shuffled".
                Scales are then its scale_a: (32 (ceil(M / 32) + G), 8 ceil(N / 256)) in bands of 32 rows that begin with each group.
                Row r of group g, which begins with row f, is row 32 (f // 32 + g) + r - f of them, and what is in no group is not
                written. offs stays on the device

    Raises TypeError or ValueError, before anything is launched, for what has no kernel.
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
        "quantize", x, scale, smooth, smooth_ids, entries, places, offs, choices, *options_of(spec, x.device)
    )
    return as_described(codes, scales, spec, leading, x.shape[-1], scale)


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
    """quantize(gated_activation(x, kind, other=other, bias=bias, limit=limit, alpha=alpha), spec, scale, offs=offs) in one launch: the same
    codes and scales to the bit, since the gated value is rounded to x's dtype here, too.

    Arguments as those two have them, but for granularity (128, 128), which has no kernel. The scale of granularity "tensor" must be given: nobody knows the largest magnitude before
    all of the tensor is computed. It has no derivative.

    Raises TypeError or ValueError, before anything is launched, for what has no kernel.
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
    """check_spec, and ValueError for scales that rows share; `instead` makes what can then be quantised."""
    check_spec(where, spec)
    if spec.granularity == _BLOCK:
        raise ValueError(
            f"{where}: granularity is (128, 128), which no row can be quantised by alone; call quantize on the result of {instead}"
        )


def _leading(where: str, spec: QuantSpec, x: torch.Tensor, entries, choices: int) -> torch.Size:
    """The shape of codes without its last dimension. Raises TypeError or ValueError for entries that no kernel takes."""
    if isinstance(choices, bool) or not isinstance(choices, int) or choices < 1:
        raise ValueError(f"{where}: choices is {choices!r}; it must be a whole number, 1 or more")
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
    """Ends of groups as operators take them. Raises TypeError or ValueError where rows of x have no scales in bands."""
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
    """Raises TypeError or ValueError where rows of so many columns have no codes of this format, or scale is none of theirs."""
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
    """The arguments of operators that say what a spec says of tensors on a device: csrc/torch/quantization.h."""
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
    describes."""
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
    """Of the codes of a format on a device: gfx942 and gfx950 have 8-bit floats of their own."""
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
    """codes * scales in float32, rounded to dtype, of what `quantize` has made with this spec. PyTorch's operations, on any device.

    Scales as `quantize` returns them, but not "shuffled". smooth and smooth_ids as `quantize` was given them: values are divided
    by the factors again, and rows without factors are zeros.
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
    """Bytes of e8m0 as float32. torch.ldexp would do, but on the current GPU, whichever holds the bytes (torch 2.11)."""
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
    """Rows of codes of 6 bits, whole 24 bytes, in the order of the kernels of products: of the first 128 codes of all rows the first 16 bytes
    of every 24, row by row, then the last 8, and behind them the next 128 codes of all rows. There are zeros behind the last codes of a
    row. Bytes (..., 96 ceil(N / 128)), of which a row of the result is not one of the codes."""
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % 96))
    blocks = padded.reshape(-1, padded.shape[-1] // 96, 4, 24).transpose(0, 1)
    parts = (blocks[..., :16].flatten(1), blocks[..., 16:].flatten(1))
    return torch.cat(parts, 1).reshape(padded.shape)


def _listed(names) -> str:
    return ", ".join(map(repr, names))
