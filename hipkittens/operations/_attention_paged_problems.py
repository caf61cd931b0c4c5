# SPDX-License-Identifier: MIT
"""Problems of attention to a cache in pages, and PyTorch's answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..paged_attention import paged_in_torch

# What a table holds where no page is used: a page far behind the cache.
UNUSED = 0x7FFFFFFF


@dataclass(frozen=True)
class PagedProblem:
    """Tensors of attention_paged."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    seqused_k: torch.Tensor
    cu_seqlens_q: torch.Tensor | None
    max_seqlen_q: int

    def arguments(self) -> tuple[object, ...]:
        return (
            self.q,
            self.k_cache,
            self.v_cache,
            self.block_table,
            self.seqused_k,
            self.cu_seqlens_q,
            self.max_seqlen_q,
        )


def draw_paged(
    lengths: Sequence[int],
    queries: int | Sequence[int] = 1,
    *,
    heads: int = 8,
    key_heads: int = 1,
    head_dim: int = 128,
    page: int = 16,
    layout: str = "nhd",
    dtype: torch.dtype = torch.bfloat16,
    generator: torch.Generator | None = None,
    spare_pages: int = 3,
) -> PagedProblem:
    """Sequences whose pages are in no order, with NaN in every byte that holds no key, and entries of the table that no key needs
    far behind the cache. queries: tokens of each sequence, or of all alike."""
    generator = generator or torch.Generator().manual_seed(0)
    counts = [queries] * len(lengths) if isinstance(queries, int) else list(queries)
    pages = [-(-length // page) for length in lengths]
    blocks = sum(pages) + spare_pages
    order = torch.randperm(blocks, generator=generator)[: sum(pages)].to(torch.int32)
    table = torch.full((len(lengths), max([*pages, 0]) + 1), UNUSED, dtype=torch.int32)
    size = (blocks, page, key_heads, head_dim)
    # As a whole with room between the pages, which must not matter.
    caches = [torch.full((blocks, 2, *size[1:]), float("nan"), dtype=dtype)[:, 1] for _ in range(2)]
    if layout == "hnd":
        caches = [
            torch.full((blocks, 2, key_heads, page, head_dim), float("nan"), dtype=dtype)[:, 1].transpose(
                1, 2
            )
            for _ in range(2)
        ]
    for row, used in enumerate(order.split(pages)):
        table[row, : len(used)] = used
        for number, block in enumerate(used.tolist()):
            filled = min(page, lengths[row] - number * page)
            for cache in caches:
                cache[block, :filled] = torch.randn((filled, key_heads, head_dim), generator=generator).to(
                    dtype
                )
    if layout == "hnd":
        caches = [cache.transpose(1, 2) for cache in caches]
    q = torch.randn((sum(counts), heads, head_dim), generator=generator).to(dtype)
    ends = None
    if not isinstance(queries, int):
        ends = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    return PagedProblem(
        q,
        caches[0],
        caches[1],
        table,
        torch.tensor(lengths, dtype=torch.int32),
        ends,
        max([*counts, 0]),
    )


def in_torch(
    problem: PagedProblem,
    dtype: torch.dtype | None = None,
    *,
    causal: bool = True,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    cache_layout: str = "nhd",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and LSE by PyTorch in float32, or all of it in float64 where that is `dtype`."""
    tensors = (problem.q, problem.k_cache, problem.v_cache)
    if dtype is not None:
        tensors = tuple(tensor.to(dtype) for tensor in tensors)
    scale = problem.q.shape[-1] ** -0.5 if scale is None else scale
    left, right = (max(side, -1) for side in window_size)
    return paged_in_torch(
        *tensors, problem.block_table, problem.seqused_k, problem.cu_seqlens_q, alibi_slopes, sinks, problem.max_seqlen_q,
        cache_layout == "hnd", scale, causal, left, right, softcap,
    )  # fmt: skip
