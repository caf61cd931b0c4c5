# SPDX-License-Identifier: MIT
"""GEMMs of quantized operands by AITER's names: x (M, K) and w (N, K), both int8 or 8-bit floats of the target. AITER's Triton kernels
round the scaled sum to the bias' dtype before they add the bias; here it is added in float32 and the result is rounded once.
"""

from __future__ import annotations

import torch

from .. import scaled_matmul
from .._panels import as_b, shape_of_weights
from ._operands import check_operands, panels_of_shuffled
from ._results import check_place, placed


def gemm_a8w8(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    splitK: int | None = None,
    *,
    y: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    """(XQ @ WQ.T) * x_scale * w_scale + bias. x_scale has 1 or M elements, w_scale 1 or N, bias N. splitK and config choose among AITER's
    kernels; here the launch plan chooses how K is split. y, an argument of AITER's Triton function of this name, receives the result.
    """
    name = "gemm_a8w8"
    if y is not None:
        check_operands(name, {"XQ": XQ, "WQ": WQ})
        check_place(name, "y", y, XQ.shape[0], WQ.shape[0])
        dtype = y.dtype
    return placed(name, "y", y, _product(name, XQ, WQ, x_scale, w_scale, bias, dtype))


def gemm_a8w8_CK(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    splitK: int | None = None,
) -> torch.Tensor:
    """gemm_a8w8."""
    return _product("gemm_a8w8_CK", XQ, WQ, x_scale, w_scale, bias, dtype)


def gemm_a8w8_bpreshuffle(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    check: bool = False,
) -> torch.Tensor:
    """gemm_a8w8 of aiter.ops.shuffle.shuffle_weight(w, layout=(16, 16)). As in AITER, there is no bias and no int8. check has no effect:
    arguments are always checked.
    """
    name = "gemm_a8w8_bpreshuffle"
    return _product(name, XQ, panels_of_shuffled(name, "WQ", WQ), x_scale, w_scale, bias, dtype)


def gemm_a8w8_ASM(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    check: bool = False,
) -> torch.Tensor:
    """The same of shuffle_weight(w, layout=(32, 16)). bias may be None."""
    name = "gemm_a8w8_ASM"
    return _product(name, XQ, panels_of_shuffled(name, "WQ", WQ, 32), x_scale, w_scale, bias, dtype)


def gemm_a8w8_per_token_scale(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    """(x @ w.T) * x_scale * w_scale, into y if it is passed. x_scale has M elements, w_scale N. config only chooses among AITER's own
    kernels.
    """
    name = "gemm_a8w8_per_token_scale"
    result = _product(name, x, w, x_scale, w_scale, None, dtype if y is None else y.dtype)
    return placed(name, "y", y, result)


def _product(
    name: str,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    for given, dims, tensor in (("x", (2,), x), ("w", (2, 4), w)):
        if tensor.dim() not in dims:
            raise ValueError(
                f"hipkittens.aiter.{name}: {given} has shape {tuple(tensor.shape)}; it needs 2 dimensions"
            )
    for given, scale, rows in (
        ("x_scale", x_scale, x.shape[0]),
        ("w_scale", w_scale, shape_of_weights(w, f"hipkittens.aiter.{name}", "w")[0]),
    ):
        if scale.numel() not in (1, rows):
            raise ValueError(
                f"hipkittens.aiter.{name}: {given} has shape {tuple(scale.shape)}; it needs 1 element, or {rows}"
            )
    scale_a = x_scale.reshape(-1, 1) if x_scale.numel() > 1 else x_scale
    scale_b = w_scale.reshape(1, -1) if w_scale.numel() > 1 else w_scale
    bias = None if bias is None else bias.reshape(-1)
    return scaled_matmul(x, as_b(w), scale_a, scale_b, bias=bias, out_dtype=dtype)
