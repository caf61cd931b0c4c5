# SPDX-License-Identifier: MIT
"""GEMMs of fp8 operands with block scales by AITER's names: x (M, K) and w (N, K), one float32 scale for 1 x 128 of x and for
128 x 128 of w, applied to the partial sums of each 128 of K. Unlike AITER's kernels these support any M, N and K, and float32 results.
config only chooses among AITER's own kernels.
"""

from __future__ import annotations

import torch

from .. import QuantSpec, matmul, quantize, scaled_matmul
from .._panels import as_b, shape_of_weights
from ._operands import check_operands, check_output, check_shape, panels_of_shuffled
from ._quant import GROUP_FLOOR
from ._results import check_place, placed

RECIPE = ("1x128", "128x128")


def gemm_a8w8_blockscale(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    isBpreshuffled: bool = False,
    *,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    skip_reduce: bool = False,
) -> torch.Tensor:
    """XQ @ WQ.T with x_scale (M, ceil(K / 128)) of any strides and w_scale (ceil(N / 128), ceil(K / 128)). isBpreshuffled: as
    gemm_a8w8_blockscale_bpreshuffle. AITER's Triton function of this name has y, which receives the result, config, and skip_reduce, with
    which the result is complete here, as in AITER if K is not split.
    """
    name = "gemm_a8w8_blockscale"
    if y is not None:
        check_operands(name, {"XQ": XQ, "WQ": WQ})
        check_place(name, "y", y, XQ.shape[0], WQ.shape[0])
        dtype = y.dtype
    if isBpreshuffled:
        return placed(name, "y", y, _preshuffled(name, XQ, WQ, x_scale, w_scale, dtype))
    return placed(name, "y", y, product(XQ, WQ, x_scale, w_scale, dtype))


def gemm_a8w8_blockscale_bpreshuffle(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The same of aiter.ops.shuffle.shuffle_weight(w, layout=(16, 16)), with the scales of x column-major: a contiguous x_scale is read as
    (K / 128, M), whatever its shape. N and K are multiples of 16.
    """
    return _preshuffled("gemm_a8w8_blockscale_bpreshuffle", XQ, WQ, x_scale, w_scale, dtype)


def flatmm_a8w8_blockscale_ASM(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """gemm_a8w8_blockscale_bpreshuffle with the scales of w column-major as well: a contiguous w_scale is read as
    (ceil(K / 128), ceil(N / 128)).
    """
    name = "flatmm_a8w8_blockscale_ASM"
    blocks = -(-WQ.shape[0] // 128)
    return _preshuffled(name, XQ, WQ, x_scale, by_columns(name, "w_scale", w_scale, blocks), dtype)


def gemm_a16w8_blockscale(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    pre_quant: bool = False,
    config: dict | None = None,
) -> torch.Tensor:
    """x @ w.T of x in bfloat16 or float16 and 8-bit w with w_scale (ceil(N / 128), ceil(K / 128)), into y if it is passed.

    pre_quant: x is first quantized in a separate launch, each 128 of a row by its largest magnitude over the largest code, and the product
    is that of gemm_a8w8_blockscale. Without it x is used unquantized: each call dequantizes w with PyTorch operations, into two bfloat16
    parts with a remainder of 2^-17, and multiplies x with both, a product of twice K (float16 x: three times).
    """
    name = "gemm_a16w8_blockscale"
    check_operands(name, {"x": x, "w": w})
    (m, k), n = x.shape, w.shape[0]
    check_shape(name, "w_scale", w_scale, (-(-n // 128), -(-k // 128)))
    check_place(name, "y", y, m, n)
    out_dtype = dtype if y is None else y.dtype
    check_output(name, out_dtype)
    if not pre_quant:
        return placed(name, "y", y, _dequantised(x, w, w_scale, out_dtype))
    if 0 in x.shape:
        return placed(name, "y", y, x.new_zeros((m, n), dtype=out_dtype))
    codes, scales = quantize(x, QuantSpec("fp8", granularity=128, floor=GROUP_FLOOR))
    return placed(name, "y", y, product(codes, w, scales, w_scale, out_dtype))


def check_scales(name: str, x: torch.Tensor, w: torch.Tensor, **scales: torch.Tensor) -> None:
    """TypeError or ValueError unless the scales of x and w, given by name, are those of the blocks."""
    blocks = -(-x.shape[1] // 128)
    of_w = -(-shape_of_weights(w)[0] // 128)
    for (argument, scale), rows in zip(scales.items(), (x.shape[0], of_w), strict=True):
        check_shape(name, argument, scale, (rows, blocks))


def product(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product of quantized rows, w's preshuffled or not, and their scales, plus bias."""
    return scaled_matmul(*operands_of(x, w, x_scale, w_scale), recipe=RECIPE, bias=bias, out_dtype=dtype)


def operands_of(
    x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The operands of scaled_matmul with RECIPE."""
    return x, as_b(w), x_scale, w_scale.t()


def _dequantised(x: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    whole = w_scale.repeat_interleave(128, 0)[: w.shape[0]].repeat_interleave(128, 1)[:, : w.shape[1]]
    w_high, w_low = _parts(w.float() * whole)
    if x.dtype != torch.float16:
        # Values that are not finite are used once: times a part that is 0 they would be NaN.
        return matmul(
            torch.cat((x, torch.where(x.isfinite(), x, 0)), 1),
            torch.cat((w_high, w_low), 1).t(),
            out_dtype=dtype,
        )
    x_high, x_low = _parts(x.float())
    finite = torch.where(x_high.isfinite(), x_high, 0)
    left = torch.cat((x_high, finite, x_low), 1)
    return matmul(left, torch.cat((w_high, w_low, w_high), 1).t(), out_dtype=dtype)


def _parts(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The value as bfloat16 and the remainder as bfloat16, 0 if the value is not finite."""
    high = values.to(torch.bfloat16)
    return high, torch.where(high.isfinite(), values - high.float(), 0.0).to(torch.bfloat16)


def by_columns(name: str, argument: str, scale: torch.Tensor, rows: int) -> torch.Tensor:
    if scale.dim() != 2 or scale.numel() % max(rows, 1):
        raise ValueError(
            f"hipkittens.aiter.{name}: {argument} has shape {tuple(scale.shape)}; it needs 2 dimensions, one of them {rows}"
        )
    return scale.view(-1, rows).t() if scale.is_contiguous() else scale


def _preshuffled(
    name: str,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    panels = panels_of_shuffled(name, "WQ", w)
    return product(x, panels, by_columns(name, "x_scale", x_scale, x.shape[0]), w_scale, dtype)
