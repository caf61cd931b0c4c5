# SPDX-License-Identifier: MIT
"""Experts' rows in MX formats with scales in the order of sorted tokens, by the names of AITER's main branch.

Sorted ids are those of `moe_sorting`: slot << 24 | token, num_valid_ids[0] of them. The scales of each id's row are stored row by row in
the order of ids, then shuffled like `e8m0_shuffle`; where there is no token, and past the last group, they are 127. Uses one launch that
quantizes, and PyTorch's gather.
"""

from __future__ import annotations

import torch

from ..quantization import QuantSpec, quantize
from ..scaled_gemm import shuffled
from ._results import refuse

_ROWS = 32  # of a block of shuffled scales
_NO_SCALE = 127  # 2 ** 0
_FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def fused_dynamic_mx_quant_moe_sort(
    input: torch.Tensor,
    sorted_ids: torch.Tensor,
    num_valid_ids: torch.Tensor,
    token_num: int,
    topk: int,
    block_size: int,
    quant_dtype: torch.dtype = torch.float4_e2m1fn_x2,
    num_rows: torch.Tensor | None = None,
    group_size: int = 32,
    sorted_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scales): input (rows, N), a row for each token or for each token's topk slots, as MXFP4 (rows, N / 2) with two values to a
    byte, or with the e4m3 of gfx950 as MXFP8 (rows, N); scales (sorted ids rounded up to a multiple of 32, N / 32 to one of 8),
    torch.float8_e8m0fnu.

    Scales follow the rule "round_up" of `QuantSpec`, 0 for zeros. With sorted_weights a sorted row of weight 0 has scales of 0, and a row
    of input whose sorted rows all have weight 0 has quantized values of 0. num_rows and other groups are not supported.
    """
    return _sorted(
        "fused_dynamic_mx_quant_moe_sort", input, sorted_ids, num_valid_ids, token_num, topk, block_size, quant_dtype, num_rows, group_size,
        sorted_weights,
    )  # fmt: skip


def fused_dynamic_mxfp4_quant_moe_sort(
    input: torch.Tensor,
    sorted_ids: torch.Tensor,
    num_valid_ids: torch.Tensor,
    token_num: int,
    topk: int,
    block_size: int,
    num_rows: torch.Tensor | None = None,
    group_size: int = 32,
    sorted_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """fused_dynamic_mx_quant_moe_sort of MXFP4."""
    return _sorted(
        "fused_dynamic_mxfp4_quant_moe_sort", input, sorted_ids, num_valid_ids, token_num, topk, block_size, torch.float4_e2m1fn_x2,
        num_rows, group_size, sorted_weights,
    )  # fmt: skip


def fused_dynamic_mxfp8_quant_moe_sort(
    input: torch.Tensor,
    sorted_ids: torch.Tensor,
    num_valid_ids: torch.Tensor,
    token_num: int,
    topk: int,
    block_size: int,
    num_rows: torch.Tensor | None = None,
    group_size: int = 32,
    sorted_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """fused_dynamic_mx_quant_moe_sort of MXFP8."""
    return _sorted(
        "fused_dynamic_mxfp8_quant_moe_sort", input, sorted_ids, num_valid_ids, token_num, topk, block_size, torch.float8_e4m3fn, num_rows,
        group_size, sorted_weights,
    )  # fmt: skip


def mxfp4_moe_sort_fwd(
    scale: torch.Tensor,
    sorted_ids: torch.Tensor,
    num_valid_ids: torch.Tensor,
    token_num: int,
    cols: int,
) -> torch.Tensor:
    """The scales of rows (rows, cols / 32), e8m0, of each token or of each token's slots, in the order of fused_dynamic_mx_quant_moe_sort.
    PyTorch operations, no dedicated kernel.
    """
    name = "mxfp4_moe_sort_fwd"
    if scale.dim() != 2 or scale.dtype.itemsize != 1 or scale.shape[1] != -(-cols // 32):
        raise ValueError(
            f"hipkittens.aiter.{name}: scale has shape {tuple(scale.shape)} and dtype {scale.dtype}; it must be (rows, {-(-cols // 32)}) of "
            "8 bits"
        )
    rows = _rows(name, "scale", scale.shape[0], sorted_ids, num_valid_ids, token_num)
    return _gathered(scale.view(torch.uint8), rows)


def _sorted(
    name, input, sorted_ids, num_valid_ids, token_num, topk, block_size, quant_dtype, num_rows, group_size, sorted_weights
):  # fmt: skip
    where = f"hipkittens.aiter.{name}"
    if num_rows is not None:
        refuse(name, "num_rows", "given", "pass the rows that count")
    if group_size != 32:
        refuse(name, "group_size", group_size, "e8m0 scales are those of 32 elements")
    if quant_dtype in (torch.float4_e2m1fn_x2, torch.uint8):
        spec = QuantSpec("mxfp4", scale_rule="round_up")
    elif quant_dtype in _FP8:
        spec = QuantSpec("mxfp8", scale_rule="round_up")
    else:
        raise TypeError(
            f"{where}: quant_dtype is {quant_dtype}; allowed: torch.float4_e2m1fn_x2, {', '.join(map(str, _FP8))}"
        )
    if block_size < 1 or block_size % _ROWS:
        raise ValueError(f"{where}: block_size is {block_size}; it must be a multiple of {_ROWS}")
    x = input.reshape(-1, input.shape[-1])
    if x.shape[0] not in (token_num, token_num * topk):
        raise ValueError(
            f"{where}: input has {x.shape[0]} rows; {token_num} tokens of {topk} slots have {token_num} or {token_num * topk}"
        )
    if sorted_weights is not None and sorted_weights.shape != sorted_ids.shape:
        raise ValueError(
            f"{where}: sorted_weights has shape {tuple(sorted_weights.shape)}; it must be {tuple(sorted_ids.shape)}"
        )
    rows = _rows(name, "input", x.shape[0], sorted_ids, num_valid_ids, token_num)
    codes, scales = quantize(x, spec)
    if sorted_weights is None:
        return codes.view(quant_dtype), _gathered(scales, rows)
    counted = torch.zeros(x.shape[0] + 1, dtype=torch.bool, device=x.device)
    seen = counted.clone()
    counts = (rows >= 0) & (sorted_weights != 0)
    counted[torch.where(counts, rows, -1)] = True
    seen[rows] = True
    codes.view(torch.uint8)[seen[:-1] & ~counted[:-1]] = 0
    return codes.view(quant_dtype), _gathered(scales, rows, (rows >= 0) & ~counts)


def _rows(name, argument, count, sorted_ids, num_valid_ids, token_num) -> torch.Tensor:
    """The row of input for each sorted id; -1 where there is no token."""
    if sorted_ids.dim() != 1 or sorted_ids.dtype != torch.int32:
        raise ValueError(
            f"hipkittens.aiter.{name}: sorted_ids has shape {tuple(sorted_ids.shape)} and dtype {sorted_ids.dtype}; it must be a vector of "
            "torch.int32"
        )
    if token_num < 0 or (count % token_num if token_num else count):
        raise ValueError(
            f"hipkittens.aiter.{name}: {argument} has {count} rows; {token_num} tokens have as many each"
        )
    slots = count // token_num if token_num else 1
    token, slot = (sorted_ids & 0xFFFFFF).long(), (sorted_ids >> 24).long()
    place = torch.arange(len(sorted_ids), device=sorted_ids.device)
    there = (place < num_valid_ids.flatten()[0]) & (token < token_num)
    if slots > 1:
        there &= slot < slots
    return torch.where(there, token * slots + (slot if slots > 1 else 0), -1)


def _gathered(scales, rows, zero=None) -> torch.Tensor:
    """Bytes (rows, groups) by row, shuffled; `zero`: where they are 0."""
    found = scales.new_full((len(rows), scales.shape[1]), _NO_SCALE)
    if scales.shape[0]:
        found = torch.where((rows >= 0)[:, None], scales[rows.clamp_min(0)], found)
        if zero is not None:
            found[zero] = 0
    return shuffled(found).view(torch.float8_e8m0fnu)
