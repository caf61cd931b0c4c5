# SPDX-License-Identifier: MIT
"""Batched GEMMs of quantized operands by AITER's names: x (B, M, K) and w (B, N, K). config and splitK only choose among AITER's own
kernels. There is one launch, a grouped GEMM whose groups are the batch; with a pair of other formats than two of 8-bit floats, int8 or e2m1
one launch per matrix. Biases are added in float32 and the result is rounded once, where AITER's Triton kernels round before they add.
"""

from __future__ import annotations

import torch

from .. import QuantSpec, grouped_matmul, quantize, scaled_matmul
from ..quantization import dtype_of
from ._gemm_fp4 import check_operand, check_unquantised, quantised, w_of, x_of
from ._operands import (
    FP8_DTYPES,
    check_has_mxfp4,
    check_operands,
    check_output,
    check_shape,
    ends_of,
    with_elements,
)
from ._quant import GROUP_FLOOR
from ._results import check_place, placed, refuse


def batched_gemm_a8w8(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    splitK: int | None = None,
    YQ: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    """(XQ[i] @ WQ[i].T) * x_scale[i] * w_scale[i] + bias[i], into YQ (B, M, N) if it is passed, of 8-bit values. x_scale has B M
    elements, w_scale and bias B N.
    """
    return _scaled("batched_gemm_a8w8", XQ, WQ, x_scale, w_scale, bias, dtype, YQ)


def batched_gemm_a8w8_CK(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    splitK: int | None = None,
) -> torch.Tensor:
    """batched_gemm_a8w8."""
    return _scaled("batched_gemm_a8w8_CK", XQ, WQ, x_scale, w_scale, bias, dtype, None)


def batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant(
    X: torch.Tensor,
    WQ: torch.Tensor,
    w_scale: torch.Tensor,
    group_size: int = 128,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    splitK: int | None = None,
    YQ: torch.Tensor | None = None,
    transpose_bm: bool = False,
    transpose_bm_in: bool = False,
    config: dict | None = None,
) -> torch.Tensor:
    """X[i] @ WQ[i].T * w_scale + bias[i] of X in bfloat16, float16 or float32, which is first quantized in a separate launch, each
    group_size of a row by its largest magnitude over the largest code. WQ is 8-bit floats of the target and group_size 128; others are not
    supported. w_scale has 1 or B elements. transpose_bm_in: X is (M, B, K); transpose_bm: the result, and YQ, are (M, B, N).
    """
    name = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"
    if group_size != 128:
        refuse(name, "group_size", group_size, "allowed: 128")
    if isinstance(WQ, torch.Tensor) and WQ.dtype not in FP8_DTYPES:
        refuse(name, "WQ", WQ.dtype, f"allowed: {', '.join(map(str, FP8_DTYPES))}")
    rows = X.transpose(0, 1) if transpose_bm_in and X.dim() == 3 else X
    check_operands(name, {"X": rows, "WQ": WQ}, 3)
    (batch, m, k), n = rows.shape, WQ.shape[1]
    check_shape(name, "w_scale", w_scale, (), (1,), (batch,), (batch, 1), (batch, 1, 1))
    bias = with_elements(name, "bias", bias, batch, n)
    check_place(name, "YQ", YQ, *((m, batch, n) if transpose_bm else (batch, m, n)))
    out_dtype = dtype if YQ is None else YQ.dtype
    check_output(name, out_dtype)
    if 0 in (batch, m, n, k):
        result = X.new_zeros((batch, m, n), dtype=out_dtype)
        result = result if bias is None else (result + bias.unsqueeze(1)).to(out_dtype)
    else:
        codes, scales = quantize(X, QuantSpec("fp8", granularity=128, floor=GROUP_FLOOR))
        if transpose_bm_in:
            codes, scales = codes.transpose(0, 1), scales.transpose(0, 1)
        blocks = w_scale.reshape(-1, 1, 1).expand(batch, -(-k // 128), -(-n // 128))
        result = _of_groups(codes, WQ, scales.reshape(batch * m, -1), blocks, bias, out_dtype)
    if transpose_bm:
        result = result.transpose(0, 1).contiguous()
    return placed(name, "YQ", YQ, result)


def batched_gemm_afp4wfp4(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    """gemm_afp4wfp4 of each matrix: x (B, M, K / 2), w (B, N, K / 2), x_scales (B, M, K / 32), w_scales (B, N, K / 32), into y (B, M, N)
    if it is passed. AITER requires y.
    """
    name = "batched_gemm_afp4wfp4"
    check_has_mxfp4(name, x)
    check_operands(name, {"x": x, "w": w}, 3)
    (batch, m, _), n = x.shape, w.shape[1]
    for argument, scales, codes in (("x_scales", x_scales, x), ("w_scales", w_scales, w)):
        check_shape(name, argument, scales, (batch, codes.shape[1], codes.shape[2] // 16))
    check_place(name, "y", y, batch, m, n)
    _check_matrices(name, x_of, x, x_scales)
    _check_matrices(name, w_of, w, w_scales)
    result = _of_fp4(x, w, x_scales, w_scales, dtype if y is None else y.dtype)
    return placed(name, "y", y, result)


def batched_gemm_afp4wfp4_pre_quant(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    """gemm_afp4wfp4_pre_quant of each matrix, with a launch that quantizes all of x (B, M, K) before the one of all GEMMs. AITER requires y."""
    return _quantised("batched_gemm_afp4wfp4_pre_quant", x, w, w_scales, dtype, y)


def batched_gemm_a16wfp4(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    transpose_bm: bool = False,
    prequant: bool = True,
    y_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """batched_gemm_afp4wfp4_pre_quant, by the name of AITER's main branch. transpose_bm: the result, and y, are (M, B, N). y_scale, of one
    element: results are divided by it before they are rounded, for example to 8-bit floats of the target, of which they are then quantized
    values. prequant False, a product of the unquantized x, is not supported.
    """
    name = "batched_gemm_a16wfp4"
    if not prequant:
        refuse(name, "prequant", prequant, "dequantise w (hipkittens.dequantize) and use hipkittens.matmul")
    y_scale = with_elements(name, "y_scale", y_scale)
    return _quantised(name, x, w, w_scales, dtype, y, transpose_bm, y_scale)


def _scaled(name, x, w, x_scale, w_scale, bias, dtype, y):
    check_operands(name, {"XQ": x, "WQ": w}, 3)
    (batch, m, _), n = x.shape, w.shape[1]
    x_scale = with_elements(name, "x_scale", x_scale, batch * m, 1)
    w_scale = with_elements(name, "w_scale", w_scale, batch, 1, n)
    bias = with_elements(name, "bias", bias, batch, n)
    check_place(name, "YQ", y, batch, m, n)
    out_dtype = dtype if y is None else y.dtype
    if all(each.dtype in FP8_DTYPES for each in (x, w)) or x.dtype == w.dtype == torch.int8:
        result = _of_groups(x, w, x_scale, w_scale, bias, out_dtype, ("row", "row"))
        return placed(name, "YQ", y, result)
    result = torch.empty((batch, m, n), dtype=out_dtype, device=x.device)
    for i, scale in enumerate(x_scale.view(batch, m, 1)):
        added = None if bias is None else bias[i]
        result[i] = scaled_matmul(
            x[i], w[i].t(), scale, w_scale[i], recipe="row", bias=added, out_dtype=out_dtype
        )
    return placed(name, "YQ", y, result)


def _of_groups(x, w, x_scale, w_scale, bias, dtype, recipe=("1x128", "128x128")):
    """The batch as consecutive groups of rows."""
    batch, m, k = x.shape
    return grouped_matmul(
        x.reshape(batch * m, k), w.mT, ends_of(batch, m, x.device), scale_a=x_scale, scale_b=w_scale, recipe=recipe,
        bias=bias, out_dtype=dtype,
    ).view(batch, m, w.shape[1])  # fmt: skip


def _check_matrices(name, operand_of, codes, scales) -> None:
    """The matrices of a batch are alike: checks the first, if there is one."""
    for each, of_each in zip(codes[:1], scales[:1], strict=True):
        check_operand(name, operand_of(each, of_each))


def _of_fp4(x, w, x_scales, w_scales, dtype):
    batch, m, _ = x.shape
    if 0 in (*x.shape, *w.shape):
        return x.new_zeros((batch, m, w.shape[1]), dtype=dtype)
    scales = (each.view(torch.uint8) for each in (x_scales.reshape(batch * m, -1), w_scales.mT))
    return _of_groups(x.view(torch.uint8), w.view(torch.uint8), *scales, None, dtype, ("1x32", "1x32"))


def _quantised(name, x, w, w_scales, dtype, y, transpose_bm=False, y_scale=None):
    check_unquantised(name, x, w, 3)
    batch, m, k = x.shape
    n = w.shape[1]
    check_shape(name, "w_scales", w_scales, (batch, n, k // 32))
    _check_matrices(name, w_of, w, w_scales)
    check_place(name, "y", y, *((m, batch, n) if transpose_bm else (batch, m, n)))
    out_dtype = dtype if y is None else y.dtype
    if y_scale is None or out_dtype.itemsize != 1:
        check_output(name, out_dtype)
    elif out_dtype != dtype_of("fp8", x.device):
        raise TypeError(
            f"hipkittens.aiter.{name}: results are {out_dtype}; this target's codes are {dtype_of('fp8', x.device)}"
        )
    wide = out_dtype if y_scale is None else torch.float32
    if 0 in x.shape:
        result = x.new_zeros((batch, m, n), dtype=wide)
    else:
        codes, scales = quantised(name, x, False)
        result = _of_fp4(codes, w, scales, w_scales, wide)
    if y_scale is not None:
        result = _divided(result, y_scale, out_dtype)
    if transpose_bm:
        result = result.transpose(0, 1).contiguous()
    return placed(name, "y", y, result)


def _divided(result, scale, dtype):
    if dtype.itemsize != 1:
        return (result * scale.float().reciprocal()).to(dtype)
    return quantize(result, QuantSpec("fp8", granularity="tensor"), scale.float())[0]
