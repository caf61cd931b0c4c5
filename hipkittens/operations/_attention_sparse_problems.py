# SPDX-License-Identifier: MIT
"""Problems of latent attention to lists of keys, and PyTorch's answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..latent_attention import LATENT, ROTARY
from ._attention_paged_problems import in_scaled_rows, latents_in_numbers, scale_tensor


@dataclass(frozen=True)
class SparseProblem:
    """Tensors of attention_mla_sparse."""

    q: torch.Tensor
    kv_cache: torch.Tensor
    indices: torch.Tensor

    def arguments(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.kv_cache, self.indices


def draw_sparse(
    lengths: Sequence[int],
    width: int,
    *,
    heads: int = 16,
    page: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
    scaled_rows: bool = False,
    generator: torch.Generator | None = None,
) -> SparseProblem:
    """Tokens with this many keys each, anywhere in lists of `width` entries, some keys in several lists and twice in one; mixed with
    numbers below 0 and past the cache. NaN in every row that is not listed, and between the pages.
    """
    generator = generator or torch.Generator().manual_seed(0)
    stored = cache_dtype or dtype
    blocks = -(-2 * max([*lengths, 1]) // page) + 1
    keys = blocks * page
    chosen = torch.randperm(keys, generator=generator)[: max([*lengths, 1])]
    nothing = torch.tensor([-1, -7, keys, 0x7FFFFFFF])
    indices = nothing[torch.randint(len(nothing), (len(lengths), width), generator=generator)].to(torch.int32)
    for row, length in zip(indices, lengths, strict=True):
        drawn = torch.randint(len(chosen), (length,), generator=generator)
        places = torch.randperm(width, generator=generator)[:length]
        row[places] = chosen[drawn].to(torch.int32)
    cache = torch.full((blocks, 2, page, LATENT + ROTARY), float("nan")).to(stored)[:, 1]
    filled = torch.randn((len(chosen), LATENT + ROTARY), generator=generator).to(stored)
    cache[chosen // page, chosen % page] = filled
    if scaled_rows:
        cache = in_scaled_rows(cache.unsqueeze(2)).squeeze(2)
    q = torch.randn((len(lengths), heads, LATENT + ROTARY), generator=generator).to(dtype)
    return SparseProblem(q, cache, indices)


def sparse_in_float(
    problem: SparseProblem,
    dtype: torch.dtype | None = None,
    *,
    scale: float,
    topk_length: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    kv_scale: torch.Tensor | float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and LSE by PyTorch operations in float32, out rounded to q's dtype; or entirely in `dtype`."""
    working = dtype or torch.float32
    cache = latents_in_numbers(problem.kv_cache).to(working).flatten(0, 1)
    factor = scale_tensor(kv_scale, cache.device)
    tokens, heads, _ = problem.q.shape
    out = torch.zeros((tokens, heads, LATENT), dtype=working)
    lse = torch.full((heads, tokens), -torch.inf, dtype=working)
    for token, (q, listed) in enumerate(zip(problem.q.to(working), problem.indices.long(), strict=True)):
        if topk_length is not None:
            listed = listed[: int(topk_length[token])]
        rows = cache[listed[(listed >= 0) & (listed < len(cache))]]
        if factor is not None:
            rows = rows * factor.to(working)
        scores = scale * q @ rows.T
        lse[:, token] = scores.logsumexp(-1)
        if len(rows):
            total = lse[:, token]
            if sinks is not None:
                total = torch.logaddexp(total, sinks.to(working))
            out[token] = (scores - total[:, None]).exp() @ rows[:, :LATENT]
    return (out if dtype is not None else out.to(problem.q.dtype)), lse
