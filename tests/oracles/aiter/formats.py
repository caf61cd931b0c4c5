# SPDX-License-Identifier: MIT
"""Number formats and tile orders of AITER's quantized operands (aiter/ops/shuffle.py, aiter/utility/fp4_utils.py)."""

from __future__ import annotations

import torch

FLOAT4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def float8(target: str) -> torch.dtype:
    """gfx942 has the FNUZ variant of e4m3, gfx950 the OCP one."""
    return torch.float8_e4m3fnuz if target == "gfx942" else torch.float8_e4m3fn


def tiled(weights: torch.Tensor, rows: int = 16, columns: int = 16) -> torch.Tensor:
    """AITER's shuffle_weight: the last two dimensions in tiles of `rows`, with each lane's 16 bytes contiguous."""
    *batch, n, k = weights.shape
    packed = 16 // weights.itemsize
    view = weights.view(torch.int8 if weights.itemsize == 1 else weights.dtype)
    view = view.reshape(*batch, n // rows, rows, k // (2 * columns), 2 * columns // packed, packed)
    return view.transpose(-4, -3).transpose(-3, -2).reshape(weights.shape).contiguous().view(weights.dtype)


def quantised(values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per row of the last dimension: stored values, f32 scales [..., 1], and the dequantized values in f64."""
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    scale = (values.abs().amax(-1, keepdim=True) / largest).float()
    scaled = values / scale
    stored = (scaled.round() if dtype == torch.int8 else scaled).to(dtype)
    return stored, scale, stored.double() * scale.double()


def quantised_blocks(weights: torch.Tensor, dtype: torch.dtype, side: int = 128):
    """Per block of side x side: stored values, f32 scales [..., n/side, k/side], and the dequantized values in f64."""
    *batch, n, k = weights.shape
    blocks = weights.reshape(*batch, n // side, side, k // side, side).transpose(-3, -2)
    stored, scale, meaning = quantised(blocks.reshape(*batch, n // side, k // side, side * side), dtype)

    def back(values: torch.Tensor) -> torch.Tensor:
        whole = values.reshape(*batch, n // side, k // side, side, side).transpose(-3, -2)
        return whole.reshape(weights.shape).contiguous()

    if stored.itemsize == 1:
        return back(stored.view(torch.uint8)).view(dtype), scale[..., 0].contiguous(), back(meaning)
    return back(stored), scale[..., 0].contiguous(), back(meaning)


def float4_values(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The values of MXFP4 data: e2m1 pairs, the even one in the low nibble, and an e8m0 scale for each 32."""
    nibbles = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    return FLOAT4[nibbles.long()] * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)


def quantised_float4(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed e2m1 pairs and e8m0 scales of 32 values each, rounded to nearest, with the scale's exponent rounded down."""
    blocks = values.reshape(*values.shape[:-1], -1, 32)
    exponent = blocks.abs().amax(-1).clamp_min(1e-30).log2().floor() - 2
    scales = (exponent + 127).clamp(0, 254).to(torch.uint8)
    scaled = blocks / torch.exp2(scales.double() - 127)[..., None]
    code = (scaled.abs()[..., None] - FLOAT4[:8]).abs().argmin(-1) + 8 * (scaled < 0)
    code = code.reshape(values.shape).to(torch.uint8)
    return (code[..., 0::2] | code[..., 1::2] << 4).contiguous(), scales


def quantised_int4(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per row of the last dimension: integers of -8 to 7, f32 scales [..., 1], and the dequantized values in f64."""
    scale = (values.abs().amax(-1, keepdim=True) / 7).float()
    stored = (values / scale).round().clamp(-8, 7).to(torch.int32)
    return stored, scale, stored.double() * scale.double()


def packed_int4(stored: torch.Tensor) -> torch.Tensor:
    """Eight to a word, even ones in its low half, in tiles of 16 rows, with each lane's 32 values of a row contiguous.

    The order is derived from the kernels: they take the bytes of a word two at a time, low nibbles first (v_cvt_off_f32_i4
    on bytes 0 and 2, then on the word shifted by 4), into the eight fp8 values of one operand.
    """
    *batch, n, k = stored.shape
    tiles = stored.reshape(*batch, n // 16, 16, k // 128, 4, 32).transpose(-4, -3).transpose(-3, -2)
    nibbles = (tiles.reshape(*batch, n, k // 8, 8) & 15)[..., [0, 2, 4, 6, 1, 3, 5, 7]].long()
    words = (nibbles << (4 * torch.arange(8))).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def rounded_to_float4(values: torch.Tensor) -> torch.Tensor:
    """Values rounded to MXFP4 in blocks of 32: the least scale that keeps the largest within 6, to nearest, ties to even."""
    blocks = values.reshape(*values.shape[:-1], -1, 32)
    scale = torch.exp2((blocks.abs().amax(-1, keepdim=True) / 6).clamp_min(2.0**-126).log2().ceil())
    between = (FLOAT4[1:8] + FLOAT4[:7]) / 2
    size = (blocks / scale).abs()
    code = torch.bucketize(size, between)  # the lower one at a tie
    code += torch.isin(size, between[1::2])
    return (FLOAT4[code] * blocks.sign() * scale).reshape(values.shape)


def tiled_scales(scales: torch.Tensor) -> torch.Tensor:
    """AITER's e8m0_shuffle: rows padded to 256, columns to 8, in tiles of 32 x 8."""
    rows, columns = -(-scales.shape[0] // 256) * 256, -(-scales.shape[1] // 8) * 8
    padded = torch.zeros(rows, columns, dtype=torch.uint8)
    padded[: scales.shape[0], : scales.shape[1]] = scales
    tiles = padded.reshape(rows // 32, 2, 16, columns // 8, 2, 4).permute(0, 3, 5, 2, 4, 1)
    return tiles.reshape(rows, columns).contiguous()
