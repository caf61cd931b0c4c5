# SPDX-License-Identifier: MIT
"""Scaled matrix products of quantized operands: 8-, 6- or 4-bit values ("codes") with per-tensor, per-row or block scales."""

from __future__ import annotations

import math
from typing import Literal

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_get_no_gradients, check_tensor
from ._call import call
from ._panels import in_rows, seen_as_rows
from .activation import in_torch
from .gemm import ACTIVATIONS_OF_SUMS, number_of_activation
from .quantization import (
    QuantSpec,
    dequantize,
    dtype_of,
    e8m0_in_float,
    shuffled_six_bits,
    six_bits_in_float,
)

Scaling = Literal["tensor", "row", "1x32", "1x128", "128x128"]

OUTPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
CODE_DTYPES = (torch.float8_e4m3fnuz, torch.float8_e4m3fn)  # of gfx942 and gfx950
BIAS_DTYPES = OUTPUT_DTYPES
# Numeric values of the operator's arguments: scalings as in torch.nn.functional.ScalingType, activations in csrc/kernels/activation_kind.h.
SCALINGS: dict[str, int] = {"tensor": 0, "row": 1, "1x32": 3, "1x128": 4, "128x128": 5}
_BLOCKS = {"1x32": (1, 32), "1x128": (1, 128), "128x128": (128, 128)}
FORMATS = {"fp8": 0, "bf8": 1, "int8": 2, "fp4": 3, "fp6": 4, "bf6": 5, "bf16": 6}
_SIX_BITS = ("fp6", "bf6")
_FORMAT_OF = {
    torch.float8_e4m3fn: "fp8",
    torch.float8_e4m3fnuz: "fp8",
    torch.float8_e5m2: "bf8",
    torch.float8_e5m2fnuz: "bf8",
    torch.int8: "int8",
    torch.uint8: "fp4",
    torch.float4_e2m1fn_x2: "fp4",
    torch.bfloat16: "bf16",
}
_BYTES_OF_SCALES = (torch.uint8, torch.float8_e8m0fnu)
# Pairs of scalings that kernels support.
_OUTER, _BLOCKED = ("tensor", "row"), ("1x128", "128x128")
_MX = ("1x32",)
_BUILT = {(a, b) for built in (_OUTER, _BLOCKED, _MX) for a in built for b in built}
# Pairs of operand formats, and the pairs of scalings that each supports.
_FLOAT8 = {("fp8", "fp8"), ("fp8", "bf8"), ("bf8", "fp8")}
_MOST_SIX_BIT_BYTES = 4095 << 20  # of an operand: csrc/torch/scaled_gemm.cpp
_SAME_SIX = {("fp6", "fp6"), ("bf6", "bf6")}
_WITH_WEIGHTS_OF_4_BITS = {("fp8", "fp4"), ("bf8", "fp4"), ("bf16", "fp4")}
_PAIRS = {("int8", "int8"), ("fp4", "fp4"), *_FLOAT8, *_SAME_SIX, *_WITH_WEIGHTS_OF_4_BITS}
_ALLOWED_PAIRS = (
    "both e4m3, one e4m3 and one e5m2, both torch.int8, both e2m1 (float4_e2m1fn_x2 or uint8), a of e4m3, e5m2 or bfloat16 and b "
    "of e2m1, both of one format of 6 bits (formats='fp6' or 'bf6')"
)
# Sums of this many int8 products may exceed 31 bits.
INT8_LIMIT = 2**31 // 128**2


@_backend.interruptible
def scaled_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    *,
    recipe: Scaling | tuple[Scaling, Scaling] | None = None,
    swizzle: str | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    formats: str | tuple[str, str] | None = None,
    scale_result: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scaled matrix product of quantized operands, with an optional fused bias and activation, rounded once.

    Computes activation((a * scale_a) @ (b * scale_b) + bias) of quantized values ("codes") a (M, K) and b (K, N), which is usually w.t().

    - `a`, `b`: one of these pairs of formats:
      8-bit floats of the target (float8_e4m3fnuz and float8_e5m2fnuz on gfx942, float8_e4m3fn and float8_e5m2 on gfx950; not both e5m2),
      accumulated in float32;
      both int8, accumulated exactly in int32, with K below 131072;
      on gfx950 both e2m1, two along K in a byte, the first in the low half: (M, K / 2) and (K / 2, N) of float4_e2m1fn_x2 or uint8;
      on gfx950 8-bit `a` and e2m1 `b`, (M, K) and (K / 2, N); or on either target bfloat16 `a` and e2m1 `b`, whose values and scales the
      instructions receive as bfloat16, exactly;
      on gfx950 both e2m3 or both e3m2, 32 along K in 24 bytes, (M, 3 K / 4) and (3 K / 4, N) of uint8 with `formats`.
      With 6 and 4 bits K is a multiple of 32. The kernels read both along K: an `a` without contiguous rows, or a `b` without contiguous
      columns, is copied once.
      `b` of 8 and 4 bits may also be preshuffled (panel layout) by `preshuffle` or AITER's shuffle_weight, with the same result:
      (N / 16, bytes of a row / 16, 16, 16).
    - `scale_a`, `scale_b`: factors of the codes, by recipe:
      "tensor": float32, one element; "row": float32, (M, 1) and (1, N). Both are applied to the sums.
      "1x128" (e4m3): float32, for each row and each 128 of K, (M, ceil(K / 128)) and (ceil(K / 128), N); "128x128" (e4m3): for each 128
      rows and each 128 of K, (ceil(M / 128), ceil(K / 128)) and (ceil(K / 128), ceil(N / 128)). Of any strides, applied to the partial sums
      of each 128 of K; the product of a pair of scales must be representable in float32.
      "1x32" (gfx950; floats of 8, 6 or 4 bits, K a multiple of 32): e8m0 bytes (uint8 or float8_e8m0fnu; 2 ** (byte - 127), 255 for NaN)
      for each row and each 32 of K, (M, K / 32) and (K / 32, N), applied by the matrix instruction.
      ("tensor", "1x32") and ("row", "1x32"): for e2m1 `b` and a wider `a`; with bfloat16 scale_a may be None.
      Both are None if out_dtype is torch.int32.
    - `recipe`: one of these names for both, or a pair, a's and b's; block scales go with block scales, 1x32 with 1x32. None infers it from
      dtypes and shapes.
    - `swizzle`: the order of 1x32 scales. None: rows, reordered for the kernels in each call. "shuffled": the kernels' order, as written by
      quantize(QuantSpec(..., layout="shuffled")) and AITER's e8m0_shuffle, in any shape with enough elements. 6-bit codes, whatever their
      scales, must then be in the kernels' order as well, (M, 96 ceil(K / 128)), as quantize writes them with that layout.
    - `bias`: N elements of bfloat16, float16 or float32.
    - `activation`: "relu", "silu", "gelu", "gelu_tanh", or None.
    - `out_dtype`: torch.bfloat16, float16 or float32. With int8 also int32: the unscaled sums, without scales, bias and activation. With
      e4m3 `a` and `b` and scales of tensors and rows also the target's e4m3: the result times scale_result, rounded once to nearest even
      and saturated to the largest representable value.
    - `formats`: what torch.uint8 contains, for both or as a pair: "fp4" (e2m1, the default), "fp6" (e2m3) or "bf6" (e3m2).
    - `scale_result`: one float32 element, with an 8-bit out_dtype; multiplies the result before it is rounded.

    Not differentiable: tensors that require a gradient are refused. Raises TypeError or ValueError, before anything is launched, for
    arguments that no kernel supports.
    """
    where = "hipkittens.scaled_matmul"
    panels = None
    if isinstance(b, torch.Tensor) and b.dim() == 4:
        panels, b = b, seen_as_rows(where, "b", b).t()
    named, scalings = check_product(
        where, a, b, scale_a, scale_b, bias, recipe, swizzle, activation, out_dtype, formats
    )
    if panels is not None and named[0] in _SIX_BITS:
        raise ValueError(
            f"{where}: b is in panels and of 6 bits, which have an order of their own; pass w.t()"
        )
    in_codes = out_dtype in CODE_DTYPES
    if in_codes:
        _check_codes(where, a, named, scalings, out_dtype)
    _check_scale_result(where, a, scale_result, out_dtype)
    check_get_no_gradients(
        where, a=a, b=b, scale_a=scale_a, scale_b=scale_b, bias=bias, scale_result=scale_result
    )
    if swizzle and _backend.uses_torch():
        raise ValueError(f"{where}: HIPKITTENS_BACKEND is torch, which reads no {swizzle!r} scales; unset it")
    if _backend.uses_torch() or 0 in a.shape or 0 in b.shape:
        wide = torch.float32 if in_codes else out_dtype
        if panels is not None:
            b = in_rows(where, "b", panels).t()
        result = _in_torch(a, b, scale_a, scale_b, named, scalings, bias, activation, wide)
        return _in_codes(result, scale_result, out_dtype) if in_codes else result
    codes, scales = operands_as_kernels_read(
        a, b if panels is None else panels, (scale_a, scale_b), named, scalings, swizzle
    )
    activation_number = number_of_activation(activation)
    if in_codes:
        scalings = (SCALINGS[each] for each in scalings)
        codes = [in_dwords(each) for each in codes]
        result = call("scaled_gemm_codes", *codes, *scales, bias, scale_result, *scalings, activation_number)
        return result.view(out_dtype)
    return call(
        "scaled_gemm",
        *codes,
        *scales,
        bias,
        *(FORMATS[each] for each in named),
        *(SCALINGS[each] for each in scalings),
        0,
        activation_number,
        out_dtype,
    )


def operands_as_kernels_read(
    a: torch.Tensor,
    b: torch.Tensor,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
    named: tuple[str, str],
    scalings: tuple[Scaling, Scaling],
    swizzle: str | None,
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """The codes of a (M, K) and of b, (K, N) or panels, as rows of bytes, and their scales, as the operators take them."""
    read = [
        scale if scale is None else _as_kernels_read(scale, scaling, swizzle, axis)
        for axis, (scale, scaling) in enumerate(zip(scales, scalings, strict=True))
    ]
    if named[0] == "bf16" and a.stride(1) != 1:
        a = a.contiguous()
    codes = [a.view(torch.uint8), (b.t() if b.dim() == 2 else b).view(torch.uint8)]
    if scalings[0] in _BLOCKED and scalings != ("1x128", "128x128"):
        codes = [in_dwords(each) for each in codes]
    if named[0] in _SIX_BITS and not swizzle:
        codes = [shuffled_six_bits(each) for each in codes]
    return codes, read


def _check_codes(where: str, a: torch.Tensor, named, scalings, out_dtype: torch.dtype) -> None:
    """Raises for 8-bit float results that no kernel supports."""
    if named != ("fp8", "fp8") or any(each not in _OUTER for each in scalings):
        raise ValueError(
            f"{where}: out_dtype is {out_dtype}, of a of {named[0]}, b of {named[1]} and the recipe {scalings}; allowed for e4m3 operands "
            "with scales of tensors and rows: choose torch.bfloat16 or float32, and quantise that (hipkittens.quantize)"
        )
    if out_dtype != a.dtype:
        raise TypeError(
            f"{where}: out_dtype is {out_dtype} and a is {a.dtype}; results in 8 bits are of the target's e4m3, as the operands are: pass "
            f"out_dtype={a.dtype}"
        )


def _check_scale_result(
    where: str, a: torch.Tensor, scale: torch.Tensor | None, out_dtype: torch.dtype
) -> None:
    if scale is None:
        return
    check_tensor(where, "scale_result", scale)
    check_dtype_and_device(where, "scale_result", scale, (torch.float32,), "a", a)
    if scale.numel() != 1:
        raise ValueError(f"{where}: scale_result has shape {tuple(scale.shape)}; it needs one element")
    if out_dtype not in CODE_DTYPES:
        raise ValueError(
            f"{where}: scale_result is given and out_dtype is {out_dtype}; only results in 8 bits are scaled: leave it out, or pass "
            "out_dtype=a.dtype"
        )


def _in_codes(result: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    largest = torch.finfo(dtype).max
    return (result if scale is None else result * scale).clamp(-largest, largest).to(dtype)


def in_dwords(codes: torch.Tensor) -> torch.Tensor:
    """Rows of whole dwords, at least one, for kernels that need them: other rows are copied and padded with zeros. The operators copy rows
    that are not aligned to 4 bytes.
    """
    columns = codes.shape[-1]
    return torch.nn.functional.pad(codes, (0, -columns % 4 or 4)) if columns % 4 or columns == 0 else codes


def shuffled(scale: torch.Tensor) -> torch.Tensor:
    """e8m0 factors (..., rows, K / 32) in the order of the scaled matrix instructions: blocks of 32 rows by 8 columns, of which lane
    16 j + r reads those of rows r and r + 16 in columns j and j + 4 (AITER's e8m0_shuffle). Rows are padded to 32.
    """
    *matrices, rows, groups = scale.shape
    padded = scale.view(torch.uint8)
    padded = torch.nn.functional.pad(padded, (0, -groups % 8, 0, -rows % 32), value=127)
    rows, groups = padded.shape[-2:]
    blocks = padded.reshape(math.prod(matrices), rows // 32, 2, 16, groups // 8, 2, 4)
    return blocks.permute(0, 1, 4, 6, 3, 5, 2).contiguous().view(padded.shape)


def banded_shape(rows: int, ranges: int, blocks: int) -> tuple[int, int]:
    """The shape of the scales of rows with so many blocks of 32, where each of several ranges of rows begins with its own band of 32 rows
    (csrc/kernels/quantize/row_bands.h).
    """
    return 32 * (-(-rows // 32) + ranges), 8 * -(-blocks // 8)


def _as_kernels_read(scale: torch.Tensor, scaling: Scaling, swizzle: str | None, axis: int) -> torch.Tensor:
    if scaling in _MX:
        return (scale if swizzle else shuffled(scale if axis == 0 else scale.t())).view(torch.uint8)
    if scaling in _BLOCKED:
        return scale if axis == 0 else scale.t()
    return scale.reshape(-1).contiguous()


def in_float(codes: torch.Tensor, scale: torch.Tensor | None, format: str) -> torch.Tensor:
    """Rows of codes (rows, K) as float32, times their 1x32 factors if there are any."""
    if format == "fp4":
        return dequantize(codes.view(torch.uint8), scale.view(torch.uint8), QuantSpec("mxfp4"), torch.float32)
    values = six_bits_in_float(codes, format) if format in _SIX_BITS else codes.float()
    return values if scale is None else values * e8m0_in_float(scale).repeat_interleave(32, -1)


def _expanded(scale: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Block scales, each repeated over the rows and columns of its block."""
    for axis, length in enumerate(shape):
        if scale.shape[axis] not in (1, length):
            scale = scale.repeat_interleave(128, axis).narrow(axis, 0, length)
    return scale


def _in_torch(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    formats: tuple[str, str],
    scalings: tuple[Scaling, Scaling],
    bias: torch.Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    exact = a.dtype == torch.int8
    wide = torch.float64 if exact else torch.float32
    if scalings[1] in _MX or formats[0] in _SIX_BITS:
        left, right = (
            in_float(each, scale if scaling in _MX else None, format)
            for each, scale, scaling, format in zip(
                (a, b.t()),
                (scale_a, None if scale_b is None else scale_b.t()),
                scalings,
                formats,
                strict=True,
            )
        )
        product = left @ right.t()
    elif scalings[0] in _BLOCKED:
        product = (a.float() * _expanded(scale_a, a.shape)) @ (b.float() * _expanded(scale_b, b.shape))
    else:
        product = a.to(wide) @ b.to(wide)
    if out_dtype == torch.int32:
        return product.to(torch.int32)
    for scale, scaling in zip((scale_a, scale_b), scalings, strict=True):
        if scaling in _OUTER and scale is not None:
            product = product.float() * scale
    if bias is not None:
        product = product + bias.float()
    if activation is not None:
        product = in_torch(product, activation)
    return product.to(out_dtype)


@_backend.checked_once(1, 2, 3, 4, 5)
def check_product(
    where: str,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    bias: torch.Tensor | None,
    recipe: Scaling | tuple[Scaling, Scaling] | None,
    swizzle: str | None,
    activation: str | None,
    out_dtype: torch.dtype,
    formats: str | tuple[str, str] | None,
) -> tuple[tuple[str, str], tuple[Scaling, Scaling]]:
    """Raises for arguments that no kernel supports; returns the formats and the scalings of a and b."""
    given = {"a": a, "b": b, "scale_a": scale_a, "scale_b": scale_b, "bias": bias}
    for name, value in given.items():
        if value is None and name not in ("a", "b"):
            continue
        check_tensor(where, name, value)
        if value.device != a.device:
            raise ValueError(
                f"{where}: {name} is on {value.device} and a on {a.device}; move one to the other"
            )
    for name, value in (("a", a), ("b", b)):
        if value.dim() != 2:
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)}; it needs 2 dimensions (flatten(0, -2) makes rows of batches)"
            )
    _backend.check_device(where, "a", a)
    named = check_formats(where, a, b, formats)
    lengths = [
        _length(where, name, format, length, swizzle)
        for name, format, length in zip("ab", named, (a.shape[1], b.shape[0]), strict=True)
    ]
    if named[0] in _SIX_BITS:
        _check_six_bits(where, {"a": a, "b.t()": b.t()}, lengths[0], swizzle)
    if lengths[0] != lengths[1]:
        of = "" if named[0] == named[1] else f", {lengths[0]} and {lengths[1]} of K"
        raise ValueError(
            f"{where}: a has {a.shape[1]} columns and b has {b.shape[0]} rows{of} (a: {tuple(a.shape)}, b: {tuple(b.shape)}); "
            "they must be equal"
        )
    if out_dtype not in (*OUTPUT_DTYPES, *CODE_DTYPES) and not (
        out_dtype == torch.int32 and a.dtype == torch.int8
    ):
        allowed = "torch.bfloat16, torch.float16, torch.float32, torch.int32 of int8 operands, and e4m3 of e4m3 operands"
        raise TypeError(f"{where}: out_dtype is {out_dtype}; allowed: {allowed}")
    if activation is not None and activation not in ACTIVATIONS_OF_SUMS:
        raise ValueError(
            f"{where}: activation is {activation!r}; allowed: None, {', '.join(map(repr, ACTIVATIONS_OF_SUMS))}"
        )
    if bias is not None:
        if bias.dim() != 1 or bias.shape[0] != b.shape[1]:
            raise ValueError(f"{where}: bias has shape {tuple(bias.shape)}; it must be ({b.shape[1]},)")
        if bias.dtype not in BIAS_DTYPES:
            raise TypeError(
                f"{where}: bias is {bias.dtype}; allowed: torch.bfloat16, torch.float16, torch.float32"
            )
    if out_dtype == torch.int32:
        for name, value in (*given.items(), ("activation", activation)):
            if name not in ("a", "b") and value is not None:
                raise ValueError(
                    f"{where}: out_dtype is torch.int32, the sums themselves, and {name} is given; leave it None, or choose "
                    "a float out_dtype"
                )
        return named, ("tensor", "tensor")
    return named, _scalings(where, a, b, scale_a, scale_b, recipe, swizzle, named, lengths[0])


def _length(where: str, name: str, format: str, length: int, swizzle: str | None) -> int:
    """The number of codes along K of an operand of this stored length."""
    if format == "fp4":
        return 2 * length
    if format not in _SIX_BITS:
        return length
    unit = 96 if swizzle else 24
    if length % unit:
        raise ValueError(
            f"{where}: {name} has {length} bytes along K; {unit} hold {unit // 3 * 4} codes of 6 bits and must divide it: pad with zeros"
        )
    return length // 3 * 4


def _check_six_bits(where: str, rows: dict[str, torch.Tensor], k: int, swizzle: str | None) -> None:
    """Checks 6-bit codes in the kernels' order, or to be brought into it: blocks of all rows, which must fit one buffer."""
    for name, codes in rows.items():
        if swizzle and not codes.is_contiguous():
            raise ValueError(
                f"{where}: {name} has the strides {codes.stride()}; 'shuffled' codes of 6 bits are one contiguous tensor, no rows of "
                "which are those of what was quantised: quantize the part that is multiplied"
            )
        size = codes.shape[0] * ((k + 127) // 128) * 96
        if size > _MOST_SIX_BIT_BYTES:
            raise ValueError(
                f"{where}: {name} has {codes.shape[0]} rows of {k} codes of 6 bits, {size} bytes; at most {_MOST_SIX_BIT_BYTES} are "
                "reached: split the rows"
            )


def check_formats(
    where: str, a: torch.Tensor, b: torch.Tensor, formats: str | tuple[str, str] | None = None
) -> tuple[str, str]:
    given = tuple(formats) if isinstance(formats, (tuple, list)) else (formats, formats)
    if len(given) != 2 or any(each not in (None, "fp4", *_SIX_BITS) for each in given):
        raise ValueError(
            f"{where}: formats is {formats!r}; allowed: 'fp4', 'fp6', 'bf6', a pair of them (a's, b's), or None"
        )
    named = []
    for name, value, said in (("a", a, given[0]), ("b", b, given[1])):
        if value.dtype not in _FORMAT_OF:
            raise TypeError(
                f"{where}: {name} is {value.dtype}; allowed: torch.int8, 8-bit floats, e2m1 as torch.float4_e2m1fn_x2 or "
                "torch.uint8, codes of 6 bits as torch.uint8 (hipkittens.quantize makes them), and bfloat16 for a"
            )
        format = _FORMAT_OF[value.dtype]
        if said is not None and value.dtype == torch.uint8:
            format = said
        elif said not in (None, format) and isinstance(formats, (tuple, list)):
            raise TypeError(
                f"{where}: formats says {said!r} of {name}, which is {value.dtype}; it says what torch.uint8 holds"
            )
        named.append(format)
        if format not in ("fp8", "bf8") or value.device.type == "meta" or _backend.uses_torch():
            continue
        allowed = dtype_of(format, value.device, where)
        if value.dtype != allowed:
            raise TypeError(
                f"{where}: {name} is {value.dtype}; {_backend.arch_of(value.device)} multiplies {allowed}, whose codes have "
                f"other values: quantise for this target, or convert by {name}.float().to({allowed}) and adapt the scale"
            )
    if tuple(named) not in _PAIRS:
        said = "" if formats is None else f" with formats {formats!r}"
        raise TypeError(f"{where}: a is {a.dtype} and b is {b.dtype}{said}; allowed: {_ALLOWED_PAIRS}")
    if named[0] in _SIX_BITS and not (a.device.type == "meta" or _backend.uses_torch()):
        check_has_matrix(where, a, "codes of 6 bits need")
    if named[0] == "int8" and a.shape[1] >= INT8_LIMIT:
        raise ValueError(
            f"{where}: a has {a.shape[1]} columns; sums of int8 products fit in int32 below {INT8_LIMIT}: split K"
        )
    return tuple(named)


def _scalings(
    where: str,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    recipe: Scaling | tuple[Scaling, Scaling] | None,
    swizzle: str | None,
    formats: tuple[str, str],
    k: int,
) -> tuple[Scaling, Scaling]:
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale is None and (name, formats[0]) != ("scale_a", "bf16"):
            raise ValueError(
                f"{where}: {name} is None; give the factors of the codes, such as torch.ones(()), or choose out_dtype "
                "torch.int32 of int8 operands"
            )
    m, n = a.shape[0], b.shape[1]
    four_bits = "fp4" in formats
    if recipe is None:
        chosen = _inferred(where, "scale_a", scale_a, m, k, 0), _inferred(where, "scale_b", scale_b, n, k, 1)
        if any(each in _BLOCKED for each in chosen):
            # With a single block of K, block scales have the shape of row scales.
            chosen = (
                _as_blocks(chosen[0], scale_a, m, k, 0),
                _as_blocks(chosen[1], scale_b, n, k, 1),
            )
    else:
        chosen = tuple(recipe) if isinstance(recipe, (tuple, list)) else (recipe, recipe)
        if len(chosen) != 2 or any(not isinstance(each, str) or each not in SCALINGS for each in chosen):
            allowed = ", ".join(map(repr, SCALINGS))
            raise ValueError(
                f"{where}: recipe is {recipe!r}; allowed: {allowed}, a pair of them (a's, b's), or None"
            )
    if swizzle is not None and (
        swizzle != "shuffled" or (chosen[1] not in _MX and formats[0] not in _SIX_BITS)
    ):
        raise ValueError(
            f"{where}: swizzle is {swizzle!r} and the recipe {chosen}; allowed: None, and 'shuffled' with the recipe '1x32' or codes "
            "of 6 bits"
        )
    if chosen[0] in _BLOCKED and set(formats) != {"fp8"}:
        raise TypeError(
            f"{where}: a is {a.dtype} and b is {b.dtype}; allowed with the recipe {chosen}: both e4m3"
        )
    of_b = formats in _WITH_WEIGHTS_OF_4_BITS and chosen[0] in _OUTER and chosen[1] in _MX
    if four_bits and not of_b and (chosen != ("1x32", "1x32") or formats[0] == "bf16"):
        others = {"fp4": "'1x32'", "bf16": "('tensor', '1x32'), ('row', '1x32')"}
        allowed = others.get(formats[0], "'1x32', ('tensor', '1x32'), ('row', '1x32')")
        raise TypeError(
            f"{where}: a is {a.dtype} and b is {b.dtype}, two e2m1 in a byte, and the recipe {chosen}; allowed: {allowed}"
        )
    if chosen not in _BUILT and not of_b:
        allowed = ", ".join(f"({x!r}, {y!r})" for x, y in sorted(_BUILT))
        raise ValueError(f"{where}: there is no kernel for the recipe {chosen}; allowed: {allowed}")
    if chosen[1] in _MX:
        _check_mx(where, a, formats, k)
    for name, scale, scaling, rows, axis in (
        ("scale_a", scale_a, chosen[0], m, 0),
        ("scale_b", scale_b, chosen[1], n, 1),
    ):
        shape = _shape_of(scaling, rows, k, axis)
        padded = -(-rows // 32) * 32 * (-(-k // 256) * 8)
        if scale is None:
            continue
        if swizzle and scaling in _MX:
            fits, wanted = scale.numel() >= padded and scale.is_contiguous(), f"{padded} contiguous elements"
        elif scaling == "tensor":
            fits, wanted = scale.numel() == 1, "one element"
        else:
            fits, wanted = tuple(scale.shape) == shape, f"the shape {shape}"
        if not fits:
            raise ValueError(
                f"{where}: {name} has shape {tuple(scale.shape)}; scaling {scaling!r} needs {wanted}"
            )
        dtypes = _BYTES_OF_SCALES if scaling in _MX else (torch.float32,)
        if scale.dtype not in dtypes:
            allowed = ", ".join(map(str, dtypes))
            raise TypeError(f"{where}: {name} is {scale.dtype}; allowed with scaling {scaling!r}: {allowed}")
    return chosen


def _check_mx(where: str, a: torch.Tensor, formats: tuple[str, str], k: int) -> None:
    if formats[0] == "int8":
        raise TypeError(f"{where}: a is {a.dtype}; allowed with the recipe '1x32': 8-bit floats and e2m1")
    if k % 32:
        raise ValueError(
            f"{where}: K is {k}; scales of 32 of K need a multiple of 32: pad codes and scales with zeros and 127"
        )
    if formats[0] == "bf16" or a.device.type == "meta" or _backend.uses_torch():
        return
    check_has_matrix(where, a, "the recipe '1x32' needs")


def check_has_matrix(where: str, a: torch.Tensor, what: str) -> None:
    arch = _backend.arch_of(a.device)
    if arch != "gfx950":
        raise ValueError(
            f"{where}: {arch} has no matrix instruction with scales, which {what}; dequantise "
            "(hipkittens.dequantize) and use hipkittens.matmul, or scale rows or blocks of 128 of 8-bit floats"
        )


def _as_blocks(chosen: Scaling, scale: torch.Tensor, rows: int, k: int, axis: int) -> Scaling:
    """The block scaling that scales of this shape may also be for."""
    fitting = (each for each in _BLOCKED if tuple(scale.shape) == _shape_of(each, rows, k, axis))
    return chosen if chosen in _BLOCKED else next(fitting, chosen)


def _shape_of(scaling: Scaling, rows: int, k: int, axis: int) -> tuple[int, ...]:
    """The shape of the scales of an operand with so many rows (a) or columns (b), which are along `axis`."""
    if scaling == "tensor":
        return ()
    down, along = _BLOCKS.get(scaling, (1, k))
    shape = (-(-rows // down), -(-k // along) if scaling != "row" else 1)
    return shape if axis == 0 else shape[::-1]


def _inferred(where: str, name: str, scale: torch.Tensor, rows: int, k: int, axis: int) -> Scaling:
    """As in torch._scaled_mm: inferred from the number of elements, the dtype and the shape."""
    if scale is None:
        return "tensor"
    if scale.dtype in (torch.float8_e8m0fnu, torch.uint8):
        return "1x32"
    if scale.numel() == 1:
        return "tensor"
    for scaling in ("row", "1x128", "128x128"):
        if tuple(scale.shape) == _shape_of(scaling, rows, k, axis):
            return scaling
    allowed = {scaling: _shape_of(scaling, rows, k, axis) for scaling in ("row", "1x128", "128x128")}
    raise ValueError(
        f"{where}: {name} has shape {tuple(scale.shape)}, which no recipe has; allowed: one element (tensor), "
        + ", ".join(f"{shape} ({scaling})" for scaling, shape in allowed.items())
    )
