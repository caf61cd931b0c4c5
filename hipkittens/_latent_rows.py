# SPDX-License-Identifier: MIT
"""Rows of a latent cache, including 8-bit rows that contain their own scales: their contents, and how they are written."""

from __future__ import annotations

import torch

from ._arguments import check_dtype_and_device, check_tensor

LATENT, ROTARY = 512, 64
# DeepSeek V3.2's rows (FlashMLA, "FP8 KV cache"): 512 codes of float8_e4m3fn on every target, a float32 for each 128 of them, 64
# bfloat16 (csrc/kernels/paged_attention/kinds.h).
CODES_OF_A_SCALE = 128
SCALED_ROW_BYTES = LATENT + 4 * (LATENT // CODES_OF_A_SCALE) + 2 * ROTARY
SCALED_ROW_DTYPES = (torch.float8_e4m3fn, torch.uint8, torch.int8)


def has_scaled_rows(cache: torch.Tensor) -> bool:
    return cache.dim() > 0 and cache.dtype.itemsize == 1 and cache.shape[-1] == SCALED_ROW_BYTES


def scaled_rows_in_bfloat16(rows: torch.Tensor) -> torch.Tensor:
    """(..., 656) of 8 bits -> bfloat16 (..., 576): quantized values times scales, rounded once, followed by the rotary features."""
    rows = rows.view(torch.uint8)
    codes, scales, turned = rows.split((LATENT, SCALED_ROW_BYTES - LATENT - 2 * ROTARY, 2 * ROTARY), -1)
    values = codes.view(torch.float8_e4m3fn).float().unflatten(-1, (-1, CODES_OF_A_SCALE))
    # A row's bytes may not be aligned for float32.
    factors = scales.clone(memory_format=torch.contiguous_format).view(torch.float32)
    latent = (values * factors.unsqueeze(-1)).flatten(-2).bfloat16()
    return torch.cat((latent, turned.clone(memory_format=torch.contiguous_format).view(torch.bfloat16)), -1)


def scaled_rows_of(rows: torch.Tensor) -> torch.Tensor:
    """bfloat16 (..., 576) -> torch.uint8 (..., 656): the scale of each 128 features of the latent is their largest magnitude over 448,
    or 1 if that is 0.
    """
    groups = rows[..., :LATENT].float().unflatten(-1, (-1, CODES_OF_A_SCALE))
    scales = groups.abs().amax(-1, keepdim=True) / 448
    scales = torch.where(scales == 0, 1.0, scales)
    codes = (groups * (1 / scales)).clamp(-448, 448).to(torch.float8_e4m3fn)
    parts = (codes.flatten(-2), scales.squeeze(-1), rows[..., LATENT:])
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)


def check_scaled_rows(
    where: str, kv_c: torch.Tensor, k_pe: torch.Tensor, kv_cache: torch.Tensor, scale: torch.Tensor | None
) -> None:
    """Raises unless rows with scales can be written from these. kv_c, k_pe: (tokens, features)."""
    check_tensor(where, "kv_cache", kv_cache)
    check_dtype_and_device(where, "kv_cache", kv_cache, SCALED_ROW_DTYPES, "kv_c", kv_c)
    if kv_c.dtype != torch.bfloat16 or (kv_c.shape[1], k_pe.shape[1]) != (LATENT, ROTARY):
        raise ValueError(
            f"{where}: kv_c is {kv_c.dtype} with {kv_c.shape[1]} features and k_pe has {k_pe.shape[1]}; rows of {SCALED_ROW_BYTES} bytes are "
            f"of {torch.bfloat16}, {LATENT} and {ROTARY}"
        )
    if scale is not None:
        raise ValueError(
            f"{where}: scale is given and kv_cache has rows of {SCALED_ROW_BYTES} bytes, which have scales of their own; leave it out"
        )
    if kv_cache.dim() != 3:
        raise ValueError(
            f"{where}: kv_cache has shape {tuple(kv_cache.shape)}; it must be (blocks, block_size, {SCALED_ROW_BYTES})"
        )
    steps = (kv_cache.storage_offset(), *kv_cache.stride()[:2])
    if kv_cache.stride(2) != 1 or any(step % 4 for step in steps):
        raise ValueError(
            f"{where}: kv_cache has strides {tuple(kv_cache.stride())} and begins at byte {steps[0]} of its storage; its rows are of unit "
            "stride and begin on 4 bytes"
        )


def as_heads_with_scales(
    kv_c: torch.Tensor, kv_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Groups of 128 features as heads of keys and values (tokens, heads, 128), half of the groups each; the caches of the two (blocks,
    block_size, heads, 128) and those of their scales (blocks, block_size, heads).
    """
    rows = kv_cache.view(torch.uint8)
    groups = kv_c.unflatten(1, (-1, CODES_OF_A_SCALE))
    codes = rows[..., :LATENT].unflatten(2, (-1, CODES_OF_A_SCALE))
    scales = rows[..., LATENT : SCALED_ROW_BYTES - 2 * ROTARY].view(torch.float32)
    half = groups.shape[1] // 2
    return (
        groups[:, :half],
        groups[:, half:],
        codes[:, :, :half],
        codes[:, :, half:],
        scales[..., :half],
        scales[..., half:],
    )


def rotary_features(kv_cache: torch.Tensor) -> torch.Tensor:
    """bfloat16 (blocks, block_size, 64)."""
    return kv_cache.view(torch.uint8)[..., SCALED_ROW_BYTES - 2 * ROTARY :].view(torch.bfloat16)
