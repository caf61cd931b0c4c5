# SPDX-License-Identifier: MIT
"""Grouped matrix products: bfloat16, float16, or 8- and 4-bit quantized values with scales; rounded once."""

from __future__ import annotations

import torch

from . import _backend, scaled_grouped
from ._arguments import check_choices, check_dtype_and_device, check_gets_no_gradient, check_tensor
from ._autocast import to_autocast_dtype
from ._call import call
from ._panels import in_rows, seen_as_rows
from .gemm import INPUT_DTYPES, OUTPUT_DTYPES

MOST_GROUPS = 4095  # of rows or columns: a lane of csrc/kernels/gemm/group_tiles.h has up to 64 of them
MOST_GATHERED_BYTES = 0xFFF00000  # csrc/kernels/gemm/plan.h, reach_bytes
_WHERE = "hipkittens.grouped_matmul"


@_backend.interruptible
def grouped_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    *,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    recipe: scaled_grouped.Recipe | None = None,
    swizzle: str | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    entries: torch.Tensor | None = None,
    choices: int = 1,
) -> torch.Tensor:
    """Grouped matrix product, one GEMM per group, like torch.nn.functional.grouped_mm; optionally of quantized operands with scales.

    Differentiable in a, b and bias, unless there are scales. The shapes select what is computed:

        a (M, K), b (G, K, N)      rows offs[g-1] .. offs[g]-1 of a times b[g]: (M, N), the layer of a mixture of experts
        a (M, K), b (K, N)         columns of a times rows of b, both from offs[g-1] to offs[g]-1: (G, M, N), the gradient of its weights;
                                   zeros for an empty group
        a (G, M, K), b (K, N)      a[g] times columns of b: (M, N) with contiguous columns, the transpose of the first kind
        a (G, M, K), b (G, K, N)   without offs: (G, M, N)

    `offs` is int32 (G,), the end of each group, ascending; group 0 begins at 0. It stays on the device: there is no synchronization, and
    the grid of the launch does not depend on its values. Rows (columns) past the last group belong to none, and are zeros in the result.
    Ends that do not ascend or are out of range give a meaningless result, but access no other memory.

    Without scales, `a` and `b` are bfloat16 or float16, both the same, and `out_dtype` is one of these or float32 (default: the operands').
    `bias`, (N,) or (G, N), is added before the one rounding, only to rows that are in a group; it is not available for groups of columns.
    There are up to 4095 groups of rows or columns, and any number of others. Row-major and transposed b[g] are not copied, nor is the a of
    the first kind if its rows are contiguous, or that of the second if its columns are; others are copied first. Rows, and matrices of
    groups, that are not aligned to 4 bytes or have an odd number of elements are slower.

    The b of the first kind may also be preshuffled (panel layout): weights (G, N, K) as `preshuffle` returns them, which are the bytes of
    AITER's shuffle_weight: (G, N / 16, bytes of a row / 16, 16, elements of 16 bytes). The result is the same; there is no derivative.

    With scales, a and b of the first kind are quantized values ("codes"), as in `scaled_matmul`: both 8-bit floats, float8_e4m3fnuz on
    gfx942 and float8_e4m3fn on gfx950; or both int8, summed exactly, with K up to 131068; on gfx950 both e2m1, two along K in a byte,
    (M, K / 2) and (G, K / 2, N) of uint8 or float4_e2m1fn_x2, or 8-bit floats a and e2m1 b; on both targets bfloat16 a and e2m1 b. With 4
    bits K is a multiple of 32. The kernels read both along K, so b is usually the .mT of weights (G, N, K); others are copied first, as are
    rows that are not aligned to 4 bytes or whose size is not a multiple of 4. out_dtype is bfloat16 by default; with int8 it may be int32,
    the unscaled sums, without scales and bias. Not differentiable: tensors that require a gradient are refused.

    - `scale_a`, `scale_b`: float32 factors of the codes, by recipe:
      "row": a factor for each row and each column, (M, 1) and (G, 1, N), or (M,) and (G, N) as in PyTorch;
      "tensor": one element, or for b one for each group, (G, 1, 1);
      "1x128" for a with "128x128" for b: (M, ceil(K / 128)) and (G, ceil(K / 128), ceil(N / 128)), of any strides, applied to the partial
      sums of each 128 of K;
      "1x32" (gfx950): e8m0 bytes (uint8 or float8_e8m0fnu) for each 32 of K, (M, K / 32) and (G, K / 32, N), applied by the matrix
      instruction;
      ("row", "1x32") and ("tensor", "1x32"): for e2m1 b and a wider a; with bfloat16 a scale_a may be None.
      The 1x32 scales of a may also be in bands, (32 (ceil(M / 32) + G), 8 ceil(K / 256)), as `quantize` and `gated_activation_quantize`
      write them if they are passed offs; others are converted to bands by an additional launch.
    - `recipe`: "row", "tensor" or "1x32" for both, or a pair of the names above, a's and b's. None infers it from shapes and dtypes.
    - `swizzle`: the order of a 1x32 scale_b. None: as above, reordered for the kernels in each call. "shuffled": each group's scales are in
      that order, (G, ...), as `quantize` with layout "shuffled" writes those of one matrix.
    - `entries`: int32 (M,), with scales: row i of the product is that of row entries[i] // choices of a, which is then (T, K), in the
      numbering of `expert_sort`. Rows are gathered while they are loaded, so a token's row is stored once for all its experts. scale_a
      still has M rows. Rows of a take less than 4 GiB. An entry that names no row of a counts as a row of zeros.
    - `choices`: the number of entries for each row of a.

    Raises TypeError or ValueError, before anything is launched, for dtypes, shapes or devices that do not match.
    """
    panels = None
    if isinstance(b, torch.Tensor) and b.dim() == 5:
        panels, b = b, seen_as_rows(_WHERE, "b", b).mT
    if (out_dtype == torch.int32 and a.dtype == torch.int8) or any(
        each is not None for each in (scale_a, scale_b, recipe, swizzle)
    ):
        out_dtype = _check(a, b, offs, bias, out_dtype, scaled=True)
        rows = _rows_of_product(a, entries, choices)
        scales = scaled_grouped.checked(
            _WHERE, a, b, rows, scale_a, scale_b, recipe, swizzle, bias, out_dtype
        )
        if panels is not None:
            _check_panels(a, panels, bias)
        if _backend.uses_torch():
            b = b if panels is None else in_rows(_WHERE, "b", panels).mT
            if entries is not None:
                a = _gathered_in_torch(a, entries, choices)
            return _in_torch(*scaled_grouped.dequantized(a, b, scales), offs, bias, out_dtype)
        return scaled_grouped.product(a, b, offs, scales, swizzle, bias, out_dtype, panels, entries, choices)
    if entries is not None:
        raise ValueError(
            f"{_WHERE}: entries is given and a is {a.dtype} without scales, whose rows no kernel gathers; pass expert_gather(a, ...)"
        )
    if panels is not None:
        a, panels, bias = to_autocast_dtype(a, panels, bias)
        b = seen_as_rows(_WHERE, "b", panels).mT
        _check_panels(a, panels, bias)
    else:
        a, b, bias = to_autocast_dtype(a, b, bias)
    out_dtype = _check(a, b, offs, bias, out_dtype)
    if _backend.uses_torch():
        return _in_torch(a, b if panels is None else in_rows(_WHERE, "b", panels).mT, offs, bias, out_dtype)
    if panels is not None and 0 not in (*a.shape, *b.shape):
        b = panels
    return product(a, b, offs, bias, out_dtype)


def _rows_of_product(a: torch.Tensor, entries: torch.Tensor | None, choices: int) -> int:
    """How many rows the product has. Raises TypeError or ValueError for entries that no kernel supports."""
    if entries is None:
        if choices != 1:
            raise ValueError(
                f"{_WHERE}: choices is {choices!r} and entries is None; pass entries, or leave it 1"
            )
        return a.shape[0]
    check_tensor(_WHERE, "entries", entries)
    check_dtype_and_device(_WHERE, "entries", entries, (torch.int32,), "a", a)
    check_choices(_WHERE, choices)
    if entries.dim() != 1:
        raise ValueError(
            f"{_WHERE}: entries has shape {tuple(entries.shape)}; it needs 1 dimension, the choice of each row of the result"
        )
    if not gathers_rows_of(a):
        raise ValueError(
            f"{_WHERE}: entries is given and the rows of a take {gathered_bytes(a)} bytes; allowed: less than {MOST_GATHERED_BYTES}. Gather them first"
        )
    return entries.shape[0]


def gathered_bytes(a: torch.Tensor) -> int:
    """The bytes from the first row of a (T, K) to the end of the last one, all of which gathered loads must reach."""
    return a.shape[0] * max(a.stride(0), a.shape[1]) * a.itemsize


def gathers_rows_of(a: torch.Tensor) -> bool:
    """Whether gathered loads reach all rows of a (T, K)."""
    return gathered_bytes(a) < MOST_GATHERED_BYTES


def _gathered_in_torch(a: torch.Tensor, entries: torch.Tensor, choices: int) -> torch.Tensor:
    """The rows of the product by PyTorch operations; entries that name no row of a are rows of zeros."""
    stored = a.view(torch.uint8) if a.itemsize == 1 else a  # PyTorch has no operations on 8-bit floats
    rows = stored.new_zeros(entries.shape[0], a.shape[1])
    tokens = entries.long() // choices
    there = (tokens >= 0) & (tokens < a.shape[0])
    rows[there] = stored[tokens[there]]
    return rows.view(a.dtype)


def _check_panels(a: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor | None) -> None:
    if a.dim() != 2:
        raise ValueError(
            f"{_WHERE}: a has shape {tuple(a.shape)} and b is in panels; they are for groups of rows, a (M, K)"
        )
    for name, value in (("a", a), ("b", panels), ("bias", bias)):
        check_gets_no_gradient(_WHERE, name, value)


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """grouped_matmul of arguments that have been checked."""
    if bias is not None:
        bias = bias.contiguous()
    if offs is None:
        if bias is None or bias.dim() == 1:
            return call("gemm", a, b, bias, out_dtype, torch.are_deterministic_algorithms_enabled())
        return call("grouped_gemm", a, b, None, bias, out_dtype)
    offs = offs.contiguous()
    if a.dim() == 3:
        return call("grouped_gemm", b.mT, a.mT, offs, None, out_dtype).mT
    return call("grouped_gemm", a, b, offs, bias, out_dtype)


def _check(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    scaled: bool = False,
) -> torch.dtype:
    """Raises for arguments that no kernel supports; returns the result's dtype."""
    dtypes = scaled_grouped.DTYPES if scaled else INPUT_DTYPES
    optional = (("offs", offs), ("bias", bias))
    for name, value in (
        ("a", a),
        ("b", b),
        *((name, value) for name, value in optional if value is not None),
    ):
        check_tensor(_WHERE, name, value)
    for name, value in (("a", a), ("b", b)):
        if value.dim() not in (2, 3):
            raise ValueError(
                f"{_WHERE}: {name} has shape {tuple(value.shape)}; it needs 2 dimensions, or 3 with a matrix for each group"
            )
        if value.dtype in scaled_grouped.CODES and not scaled:
            raise TypeError(
                f"{_WHERE}: {name} is {value.dtype}, codes without scales; give scale_a and scale_b, or of int8 "
                "out_dtype=torch.int32"
            )
        check_dtype_and_device(_WHERE, name, value, dtypes, "a", a)
    if a.dtype != b.dtype and not scaled:
        raise TypeError(f"{_WHERE}: a is {a.dtype} and b is {b.dtype}; convert one to the other")
    lengths = a.shape[-1], b.shape[-2]
    if scaled:
        formats = scaled_grouped.check_formats(_WHERE, a, b)
        lengths = tuple(map(scaled_grouped.length, formats, lengths))
    if lengths[0] != lengths[1]:
        of = f", {lengths[0]} and {lengths[1]} of K" if lengths != (a.shape[-1], b.shape[-2]) else ""
        raise ValueError(
            f"{_WHERE}: a has {a.shape[-1]} columns and b has {b.shape[-2]} rows{of} (a: {tuple(a.shape)}, "
            f"b: {tuple(b.shape)}); they must be equal"
        )
    groups = _check_groups(a, b, offs)
    if bias is not None:
        check_dtype_and_device(
            _WHERE, "bias", bias, OUTPUT_DTYPES if scaled else (a.dtype, torch.float32), "a", a
        )
        columns = b.shape[-1]
        if a.dim() == 3 and b.dim() == 2:
            raise ValueError(f"{_WHERE}: bias is given with groups of columns; add it to the result")
        if bias.shape != (columns,) and bias.shape != (groups, columns):
            raise ValueError(
                f"{_WHERE}: bias has shape {tuple(bias.shape)}; it must be ({columns},), or ({groups}, {columns}) with a "
                "row for each group"
            )
    if out_dtype is None:
        out_dtype = torch.bfloat16 if scaled else a.dtype
    elif out_dtype not in OUTPUT_DTYPES and not (
        out_dtype == torch.int32 and a.dtype == b.dtype == torch.int8
    ):
        raise TypeError(
            f"{_WHERE}: out_dtype is {out_dtype}; allowed: torch.bfloat16, torch.float16, torch.float32, and torch.int32 of int8 "
            "operands"
        )
    _backend.check_device(_WHERE, "a", a)
    return out_dtype


def _check_groups(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> int:
    """Checks the groups and returns their number."""
    if a.dim() == b.dim() == 3:
        if offs is not None:
            raise ValueError(
                f"{_WHERE}: offs is given, and a and b have 3 dimensions, a matrix for each group; pass None"
            )
        if a.shape[0] != b.shape[0]:
            raise ValueError(f"{_WHERE}: a has {a.shape[0]} groups and b {b.shape[0]}; they must be equal")
        return a.shape[0]
    if offs is None:
        raise ValueError(
            f"{_WHERE}: offs is None; a and b that are not both of 3 dimensions need the ends of their groups"
        )
    check_dtype_and_device(_WHERE, "offs", offs, (torch.int32,), "a", a)
    if offs.dim() != 1:
        raise ValueError(
            f"{_WHERE}: offs has shape {tuple(offs.shape)}; it needs 1 dimension, the end of each group"
        )
    groups = offs.shape[0]
    for name, value in (("a", a), ("b", b)):
        if value.dim() == 3 and value.shape[0] != groups:
            raise ValueError(
                f"{_WHERE}: {name} has {value.shape[0]} groups and offs {groups}; they must be equal"
            )
    if a.dim() != b.dim() and groups > MOST_GROUPS:
        raise ValueError(
            f"{_WHERE}: offs has {groups} groups; allowed: up to {MOST_GROUPS} of rows or columns"
        )
    return groups


def _in_torch(a, b, offs, bias, out_dtype):
    """PyTorch's own products, group by group; reads offs on the host."""
    if a.dtype != torch.float64:  # of int8 codes
        a, b = a.float(), b.float()
    if offs is None:
        out = a @ b
        return (out if bias is None else out + (bias if bias.dim() == 1 else bias[:, None]).float()).to(
            out_dtype
        )
    if a.dim() == 3:
        return _in_torch(b.mT, a.mT, offs, None, out_dtype).mT
    ends = offs.tolist()
    ranges = list(zip([0, *ends], ends, strict=False))
    biases = [
        None if bias is None else (bias if bias.dim() == 1 else bias[g]).float() for g in range(len(ends))
    ]
    if b.dim() == 2:
        parts = [a[:, begin:end] @ b[begin:end] for begin, end in ranges]
    else:
        parts = [a[begin:end] @ b[g] for g, (begin, end) in enumerate(ranges)]
    parts = [part if added is None else part + added for part, added in zip(parts, biases, strict=True)]
    if b.dim() == 2:
        out = torch.stack(parts) if parts else a.new_zeros(0, a.shape[0], b.shape[1])
    else:
        past = a.shape[0] - (ends[-1] if ends else 0)
        out = torch.cat([*parts, a.new_zeros(past, b.shape[2])])
    return out.to(out_dtype)
