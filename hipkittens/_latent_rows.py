# SPDX-License-Identifier: MIT
"""Rows of a latent cache, and those of 8 bits that have scales among their bytes."""

from __future__ import annotations

import torch

LATENT, ROTARY = 512, 64
# Of DeepSeek V3.2's rows (FlashMLA, "FP8 KV cache"): 512 codes of float8_e4m3fn on every target, a float32 for each 128 of them, 64
# bfloat16 (csrc/kernels/paged_attention/kinds.h).
CODES_OF_A_SCALE = 128
SCALED_ROW_BYTES = LATENT + 4 * (LATENT // CODES_OF_A_SCALE) + 2 * ROTARY
SCALED_ROW_DTYPES = (torch.float8_e4m3fn, torch.uint8, torch.int8)


def has_scaled_rows(cache: torch.Tensor) -> bool:
    return cache.dim() > 0 and cache.dtype.itemsize == 1 and cache.shape[-1] == SCALED_ROW_BYTES


def scaled_rows_in_bfloat16(rows: torch.Tensor) -> torch.Tensor:
    """(..., 656) of 8 bits -> bfloat16 (..., 576): codes times scales, rounded once, then the rotary features."""
    rows = rows.view(torch.uint8)
    codes, scales, turned = rows.split((LATENT, SCALED_ROW_BYTES - LATENT - 2 * ROTARY, 2 * ROTARY), -1)
    values = codes.view(torch.float8_e4m3fn).float().unflatten(-1, (-1, CODES_OF_A_SCALE))
    # A row's bytes may begin where no float32 may.
    factors = scales.clone(memory_format=torch.contiguous_format).view(torch.float32)
    latent = (values * factors.unsqueeze(-1)).flatten(-2).bfloat16()
    return torch.cat((latent, turned.clone(memory_format=torch.contiguous_format).view(torch.bfloat16)), -1)


def scaled_rows_of(rows: torch.Tensor) -> torch.Tensor:
    """bfloat16 (..., 576) -> torch.uint8 (..., 656): of each 128 features of the latent the scale is their largest magnitude over 448,
    and 1 where that is 0."""
    groups = rows[..., :LATENT].float().unflatten(-1, (-1, CODES_OF_A_SCALE))
    scales = groups.abs().amax(-1, keepdim=True) / 448
    scales = torch.where(scales == 0, 1.0, scales)
    codes = (groups * (1 / scales)).clamp(-448, 448).to(torch.float8_e4m3fn)
    parts = (codes.flatten(-2), scales.squeeze(-1), rows[..., LATENT:])
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)
