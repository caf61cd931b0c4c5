# SPDX-License-Identifier: MIT
"""GEMMs of MXFP4 by AITER's names, on gfx950: e2m1 values, two along K in a byte, x (M, K / 2) and w (N, K / 2), with one e8m0 scale for
each 32 of K, x_scales (M, K / 32) and w_scales (N, K / 32). K is a multiple of 32 and otherwise arbitrary, as are M and N. config and
use_aot only choose among AITER's own kernels; with skip_reduce the result is complete, as in AITER if K is not split.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import quantize, scaled_matmul
from .._arguments import check_tensor
from .._panels import as_b, shape_of_weights
from ..scaled_gemm import shuffled
from ._norm_quant import mxfp4_of
from ._operands import (
    check_has_mxfp4,
    check_operands,
    check_output,
    check_shape,
    panels_of_bands,
    panels_of_shuffled,
)
from ._results import check_place, placed, refuse


class Operand(NamedTuple):
    """Quantized values (rows, K / 2), or preshuffled, and their scales: (rows, K / 32), or shuffled as by aiter's e8m0_shuffle, of any
    shape; and their names.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    shuffled: bool
    names: tuple[str, str]

    @property
    def rows(self) -> int:
        return shape_of_weights(self.codes)[0]


def gemm_afp4wfp4(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    """x @ w.T, into y if it is passed."""
    return product("gemm_afp4wfp4", x_of(x, x_scales), w_of(w, w_scales), dtype, y)


def gemm_afp4wfp4_preshuffled_scales(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    """gemm_afp4wfp4 of shuffled scales, which are (M / 32, K) and (N / 32, K) in AITER and of any shape here; M is arbitrary, too."""
    name = "gemm_afp4wfp4_preshuffled_scales"
    return product(name, x_of(x, x_scales, True), w_of(w, w_scales, True), dtype, y)


def gemm_afp4wfp4_preshuffled_weight_scales(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    use_aot: bool = True,
) -> torch.Tensor:
    """gemm_afp4wfp4 of a shuffled weight (N / 16, 8 K) and of shuffled scales; those of x are rows
    if M is below 32.
    """
    return _preshuffled("gemm_afp4wfp4_preshuffled_weight_scales", x, w, x_scales, w_scales, dtype, y)


def gemm_afp4wfp4_preshuffle(
    x_fp4: torch.Tensor,
    w_preshuf: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    skip_reduce: bool = False,
) -> torch.Tensor:
    """gemm_afp4wfp4_preshuffled_weight_scales, by the name of AITER's main branch."""
    return _preshuffled("gemm_afp4wfp4_preshuffle", x_fp4, w_preshuf, x_scales, w_scales, dtype, y)


def gemm_a4w4(
    A: torch.Tensor,
    B: torch.Tensor,
    A_scale: torch.Tensor,
    B_scale: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    bpreshuffle: bool = True,
) -> torch.Tensor:
    """A @ B.T into the first M rows of out, which AITER needs padded to 32; the rows after them are unchanged. Scales are shuffled, and so
    is B (N, K / 2) if bpreshuffle is true. bias, alpha and beta are not supported.
    """
    name = "gemm_a4w4"
    for argument, value, usual in (("bias", bias, None), ("alpha", alpha, 1.0), ("beta", beta, 0.0)):
        if value is not usual and value != usual:
            shown = "given" if isinstance(value, torch.Tensor) else value
            refuse(name, argument, shown, "hipkittens.scaled_matmul has a bias")
    check_has_mxfp4(name, A)
    if bpreshuffle:
        B = panels_of_shuffled(name, "B", B)
    check_operands(name, {"A": A, "B": B})
    m = A.shape[0]
    if not isinstance(out, torch.Tensor) or out.dim() != 2 or out.shape[0] < m:
        shape = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise ValueError(
            f"hipkittens.aiter.{name}: out is {shape}; it must be ({m}, {shape_of_weights(B)[0]}), or have more rows"
        )
    operands = (
        Operand(A, A_scale, True, ("A", "A_scale")),
        Operand(B, B_scale, True, ("B", "B_scale")),
    )
    product(name, *operands, out.dtype, out[:m], place="out")
    return out


def gemm_afp4wfp4_pre_quant(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    """gemm_afp4wfp4 of x (M, K) in bfloat16, float16 or float32, which is first quantized in a separate launch, as by AITER's Triton
    kernels: scales by the rule "even", values with ties away from zero. AITER adds to y with atomics and needs zeros there; here y is
    replaced.
    """
    return _quantised("gemm_afp4wfp4_pre_quant", x, w, w_scales, dtype, y)


def gemm_a16wfp4(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scales: torch.Tensor,
    atomic_add: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    """gemm_afp4wfp4_pre_quant, by the name of AITER's main branch. atomic_add only chooses among AITER's own kernels."""
    return _quantised("gemm_a16wfp4", x, w, w_scales, dtype, y)


def gemm_a16wfp4_preshuffle(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scales: torch.Tensor,
    prequant: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    skip_reduce: bool = False,
) -> torch.Tensor:
    """gemm_a16wfp4 of a shuffled weight (N / 16, 8 K) and of shuffled scales. prequant False: a
    product of the unquantized x, in bfloat16, with w as bfloat16, on either target.
    """
    name = "gemm_a16wfp4_preshuffle"
    if prequant:
        check_has_mxfp4(name, x)
        return _quantised(name, x, panels_of_bands(name, "w", w), w_scales, dtype, y, True)
    check_tensor(f"hipkittens.aiter.{name}", "x", x)
    if x.dtype != torch.bfloat16:
        refuse(name, "prequant", f"{prequant} and x is {x.dtype}", "cast x to torch.bfloat16")
    return _weight_of_4_bits(name, x, w_of(panels_of_bands(name, "w", w), w_scales, True), None, dtype, y)


def gemm_a8wfp4(
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor | None,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    config: dict | None = None,
) -> torch.Tensor:
    """x @ w.T of e4m3 x (M, K) with one float32 scale for each row, x_scales (M, 1), and e2m1 w, into y if it is passed."""
    name = "gemm_a8wfp4"
    check_tensor(f"hipkittens.aiter.{name}", "x", x)
    check_has_mxfp4(name, x)
    check_shape(name, "x_scales", x_scales, (x.shape[0], 1))
    return _weight_of_4_bits(name, x, w_of(w, w_scales), x_scales, dtype, y)


def _weight_of_4_bits(name, x, weight, x_scales, dtype, y):
    """x (M, K) as it is, times its row scales if it has any, and w as it is."""
    where = f"hipkittens.aiter.{name}"
    check_tensor(where, "w", weight.codes)
    of_w = shape_of_weights(weight.codes)
    if x.dim() != 2 or len(of_w) != 2 or x.shape[1] != 2 * of_w[1]:
        raise ValueError(
            f"{where}: x has shape {tuple(x.shape)} and w {tuple(of_w)}; they must be x (M, K) and w (N, K / 2)"
        )
    check_operand(name, weight)
    m, n = x.shape[0], weight.rows
    check_place(name, "y", y, m, n)
    out_dtype = dtype if y is None else y.dtype
    check_output(name, out_dtype)
    if 0 in (m, n):
        return placed(name, "y", y, torch.empty((m, n), dtype=out_dtype, device=x.device))
    result = scaled_matmul(
        x,
        as_b(weight.codes),
        x_scales,
        weight.scales if weight.shuffled else weight.scales.t(),
        recipe=("tensor" if x_scales is None else "row", "1x32"),
        swizzle="shuffled" if weight.shuffled else None,
        out_dtype=out_dtype,
    )
    return placed(name, "y", y, result)


def x_of(x: torch.Tensor, scales: torch.Tensor, shuffled: bool = False) -> Operand:
    return Operand(x, scales, shuffled, ("x", "x_scales"))


def w_of(w: torch.Tensor, scales: torch.Tensor, shuffled: bool = False) -> Operand:
    return Operand(w, scales, shuffled, ("w", "w_scales"))


def quantised(name: str, x: torch.Tensor, shuffle: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantized values and scales of rows of x, as in AITER's Triton kernels."""
    return quantize(x, mxfp4_of(name, shuffle, None))


def check_unquantised(name: str, x: torch.Tensor, w: torch.Tensor, dims: int) -> None:
    """TypeError or ValueError for x (..., M, K) and quantized w (..., N, K / 2) that do not match."""
    where = f"hipkittens.aiter.{name}"
    check_tensor(where, "x", x)
    check_tensor(where, "w", w)
    check_has_mxfp4(name, x)
    of_w = shape_of_weights(w)
    if (
        x.dim() != dims
        or len(of_w) != dims
        or x.shape[-1] != 2 * of_w[-1]
        or x.shape[: dims - 2] != of_w[: dims - 2]
    ):
        of = "M, K) and w (N, K / 2" if dims == 2 else "B, M, K) and w (B, N, K / 2"
        raise ValueError(f"{where}: x has shape {tuple(x.shape)} and w {tuple(of_w)}; they must be x ({of})")


def check_operand(name: str, operand: Operand) -> None:
    """TypeError or ValueError unless the scales are those of quantized values (rows, K / 2)."""
    codes, scales, is_shuffled, names = operand
    rows, columns = shape_of_weights(codes)
    groups = columns // 16
    where = f"hipkittens.aiter.{name}"
    if columns % 16:
        raise ValueError(
            f"{where}: {names[0]} has {columns} columns of 2 codes; 32 must divide K: pad with zeros"
        )
    if not is_shuffled:
        check_shape(name, names[1], scales, (rows, groups))
        return
    check_tensor(where, names[1], scales)
    least = -(-rows // 32) * 32 * (-(-groups // 8) * 8)
    if scales.numel() < least or not scales.is_contiguous():
        raise ValueError(
            f"{where}: {names[1]} has shape {tuple(scales.shape)}; shuffled scales of {rows} rows of {groups} are contiguous and have "
            f"{least} elements or more"
        )


def product(
    name: str,
    x: Operand,
    w: Operand,
    dtype: torch.dtype,
    y: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    place: str = "y",
) -> torch.Tensor:
    """The product of quantized values times their scales, plus bias, into y if it is passed, in its dtype."""
    check_product(name, x, w)
    m, n = x.rows, w.rows
    check_place(name, place, y, m, n)
    out_dtype = dtype if y is None else y.dtype
    if 0 in (m, n):
        return placed(name, place, y, torch.empty((m, n), dtype=out_dtype, device=x.codes.device))
    operands, options = operands_of(x, w)
    result = scaled_matmul(*operands, **options, bias=bias, out_dtype=out_dtype)
    return placed(name, place, y, result)


def check_product(name: str, x: Operand, w: Operand) -> None:
    """Checks operands whose product is computed by something else than `product`."""
    check_operands(name, {x.names[0]: x.codes, w.names[0]: w.codes})
    check_has_mxfp4(name, x.codes)
    for operand in (x, w):
        check_operand(name, operand)


def operands_of(
    x: Operand, w: Operand
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], dict[str, str | None]]:
    """The operands of scaled_matmul, and its options for them."""
    swizzle, scales = None, (x.scales, w.scales.t())
    if x.shuffled or w.shuffled:
        swizzle = "shuffled"
        scales = tuple(each.scales if each.shuffled else shuffled(each.scales) for each in (x, w))
    return (x.codes, as_b(w.codes), *scales), {"recipe": "1x32", "swizzle": swizzle}


def preshuffled_operands(
    name: str,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    names: tuple[str, str, str, str] = ("x", "w", "x_scales", "w_scales"),
) -> tuple[Operand, Operand]:
    """Operands of AITER's kernels with preshuffled weights, whose x_scales are shuffled if there are 32 rows or more."""
    check_has_mxfp4(name, x)
    panels = panels_of_bands(name, names[1], w)
    return (
        Operand(x, x_scales, x.dim() == 2 and x.shape[0] >= 32, names[::2]),
        Operand(panels, w_scales, True, names[1::2]),
    )


def _preshuffled(name, x, w, x_scales, w_scales, dtype, y):
    return product(name, *preshuffled_operands(name, x, w, x_scales, w_scales), dtype, y)


def _quantised(name, x, w, w_scales, dtype, y, is_shuffled=False):
    check_unquantised(name, x, w, 2)
    weight = w_of(w, w_scales, is_shuffled)
    check_operand(name, weight)
    check_place(name, "y", y, x.shape[0], weight.rows)
    check_output(name, dtype if y is None else y.dtype)
    if 0 in x.shape:
        return placed(name, "y", y, x.new_zeros((x.shape[0], weight.rows), dtype=dtype))
    return product(name, x_of(*quantised(name, x, True), True), weight, dtype, y)
