# SPDX-License-Identifier: MIT
"""Products of fp8 operands with scales of blocks by AITER's names: x (M, K) and w (N, K), one float32 scale for 1 x 128 of x and for
128 x 128 of w, applied to the sum of each 128 of K. Unlike AITER's kernels these take any M, N and K, and results of float32."""

from __future__ import annotations

import torch

from .. import scaled_matmul


def gemm_a8w8_blockscale(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    isBpreshuffled: bool = False,
) -> torch.Tensor:
    """XQ @ WQ.T with x_scale (M, ceil(K / 128)) of any strides and w_scale (ceil(N / 128), ceil(K / 128)). isBpreshuffled: as
    gemm_a8w8_blockscale_bpreshuffle."""
    name = "gemm_a8w8_blockscale"
    if isBpreshuffled:
        return _preshuffled(name, XQ, WQ, x_scale, w_scale, dtype)
    return _product(XQ, WQ, x_scale, w_scale, dtype)


def gemm_a8w8_blockscale_bpreshuffle(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The same of aiter.ops.shuffle.shuffle_weight(w, layout=(16, 16)), with the scales of x in columns: an x_scale that is
    contiguous is read as (K / 128, M), whichever shape it says. N and K are multiples of 16. No kernel reads this order of the
    weight: each call first copies it into rows, so that w itself and gemm_a8w8_blockscale are faster."""
    return _preshuffled("gemm_a8w8_blockscale_bpreshuffle", XQ, WQ, x_scale, w_scale, dtype)


def flatmm_a8w8_blockscale_ASM(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """gemm_a8w8_blockscale_bpreshuffle with the scales of w in columns, too: a contiguous w_scale is read as
    (ceil(K / 128), ceil(N / 128))."""
    name = "flatmm_a8w8_blockscale_ASM"
    blocks = -(-WQ.shape[0] // 128)
    return _preshuffled(name, XQ, WQ, x_scale, _by_columns(name, "w_scale", w_scale, blocks), dtype)


def _by_columns(name: str, argument: str, scale: torch.Tensor, rows: int) -> torch.Tensor:
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
    if w.dim() != 2 or w.shape[0] % 16 or w.shape[1] % 16:
        raise ValueError(
            f"hipkittens.aiter.{name}: WQ has shape {tuple(w.shape)}; a shuffled weight has 2 dimensions, multiples of 16"
        )
    n, k = w.shape
    chunks = w.contiguous().view(torch.uint8).view(n // 16, k // 16, 16, 16)
    rows = chunks.transpose(1, 2).reshape(n, k).view(w.dtype)
    return _product(x, rows, _by_columns(name, "x_scale", x_scale, x.shape[0]), w_scale, dtype)


def _product(
    x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    return scaled_matmul(x, w.t(), x_scale, w_scale.t(), recipe=("1x128", "128x128"), out_dtype=dtype)
