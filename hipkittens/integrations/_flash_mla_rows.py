# SPDX-License-Identifier: MIT
"""FlashMLA's 8-bit caches, whose rows contain their own scales, and lists of keys in two caches: converts the listed rows to 16 bits,
contiguous for each token, for hipkittens.attention_mla_sparse.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .._latent_rows import LATENT, ROTARY, SCALED_ROW_BYTES, SCALED_ROW_DTYPES, scaled_rows_in_bfloat16

# Bytes of a key, by the features of a query. With 576 features, as in DeepSeek V3.2: hipkittens/_latent_rows.py. With 512: 448 codes and
# rotary features of all keys of a page, then for each key an exponent per 64 codes and a byte of padding.
ROW_BYTES = {LATENT + ROTARY: SCALED_ROW_BYTES, LATENT: 584}
_CODES, _CODES_OF_A_SCALE = 448, 64


@dataclass(frozen=True)
class Lists:
    """A cache (blocks, block_size, 1, features or bytes), the positions of each token's keys in it (T, k), and which of them are valid."""

    cache: torch.Tensor
    indices: torch.Tensor
    taken: torch.Tensor

    @staticmethod
    def of(cache: torch.Tensor, indices: torch.Tensor, lengths: torch.Tensor | None) -> Lists:
        """indices (B, tokens, k), of which the first `lengths` (B,) of each token are used."""
        taken = (indices >= 0) & (indices < cache.shape[0] * cache.shape[1])
        if lengths is not None:
            taken &= torch.arange(indices.shape[2], device=indices.device) < lengths[:, None, None]
        return Lists(cache, indices.flatten(0, 1), taken.flatten(0, 1))


def check_bytes(
    where: str, name: str, cache: torch.Tensor, q: torch.Tensor, allowed: tuple[int, ...] = tuple(ROW_BYTES)
) -> None:
    """Raises unless the cache has this format for q (B, tokens, heads, features), and so many features."""
    features = q.shape[3]
    if features not in allowed:
        raise ValueError(
            f"{where}: q has {features} features and is_fp8_kvcache is True; allowed: {', '.join(map(str, allowed))}"
            + (" (and others with indices)" if allowed != tuple(ROW_BYTES) else "")
        )
    if q.dtype != torch.bfloat16:
        raise TypeError(
            f"{where}: q is {q.dtype} and is_fp8_kvcache is True; {name} has rotary features in torch.bfloat16: convert q to it"
        )
    if (
        cache.dtype not in SCALED_ROW_DTYPES
        or cache.dim() != 4
        or cache.shape[2:] != (1, ROW_BYTES[features])
    ):
        raise ValueError(
            f"{where}: {name} is {cache.dtype} of shape {tuple(cache.shape)} and is_fp8_kvcache is True; for q of {features} features it "
            f"must be {', '.join(map(str, SCALED_ROW_DTYPES))} of (blocks, block_size, 1, {ROW_BYTES[features]})"
        )
    page = cache.shape[1] * ROW_BYTES[features]
    if cache.stride(3) != 1 or (features == 512 and cache.shape[1] > 1 and cache.stride(1) != ROW_BYTES[512]):
        raise ValueError(
            f"{where}: {name} has strides {tuple(cache.stride())}; the bytes of a "
            + (f"page, {page}, must be one after the other" if features == 512 else "row must be")
        )


def rows_of(lists: list[Lists], q: torch.Tensor, in_bytes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The listed keys of q's tokens (T, heads, 576 or 512) as a cache (T * k, 1, 1, 576) in q's dtype, and int32 lists (T, k) of them, -1
    where there is no key. k counts the entries of all lists. Rows of 512 features are padded with zeros, as q has to be.
    """
    features = q.shape[-1]
    parts = []
    for each in lists:
        places = each.indices.clamp(0, each.cache.shape[0] * each.cache.shape[1] - 1).long()
        block = places // each.cache.shape[1]
        slot = places - block * each.cache.shape[1]
        if in_bytes:
            cache = each.cache.view(torch.uint8)
            if features == LATENT:
                parts.append(_widened(cache, block, slot))
            else:
                parts.append(scaled_rows_in_bfloat16(cache[block, slot, 0]))
        else:
            parts.append(each.cache[block, slot, 0])
    rows = torch.cat(parts, 1)
    if features < LATENT + ROTARY:
        rows = torch.nn.functional.pad(rows, (0, LATENT + ROTARY - features))
    taken = torch.cat([each.taken for each in lists], 1)
    numbers = torch.arange(taken.numel(), dtype=torch.int32, device=q.device).view(taken.shape)
    return rows.view(-1, 1, 1, LATENT + ROTARY), numbers.masked_fill(~taken, -1)


def _widened(cache: torch.Tensor, block: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """Rows of 512 features as bfloat16 (T, k, 512)."""
    size, together = cache.shape[1], _CODES + 2 * ROTARY
    pages = cache.as_strided((cache.shape[0], size * ROW_BYTES[LATENT]), (cache.stride(0), 1))
    arange = torch.arange(together, device=cache.device)
    rows = pages[block.unsqueeze(-1), slot.unsqueeze(-1) * together + arange]
    exponents = pages[
        block.unsqueeze(-1), size * together + slot.unsqueeze(-1) * 8 + arange[: _CODES // _CODES_OF_A_SCALE]
    ]
    scales = exponents.view(torch.float8_e8m0fnu).float()
    values = rows[..., :_CODES].view(torch.float8_e4m3fn).float().unflatten(-1, (-1, _CODES_OF_A_SCALE))
    latent = (values * scales.unsqueeze(-1)).flatten(-2).bfloat16()
    return torch.cat((latent, rows[..., _CODES:].view(torch.bfloat16)), -1)
