# SPDX-License-Identifier: MIT
"""Problems of attention to a paged cache, and PyTorch's answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .._latent_rows import has_scaled_rows, scaled_rows_in_bfloat16, scaled_rows_of
from ..cache import LAYOUTS, as_operand
from ..latent_attention import LATENT, ROTARY, latent_in_torch
from ..paged_attention import in_rows, paged_in_torch
from ..quantization import dtype_of

# The table entry where no page is used: a page far past the cache.
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
    cache_dtype: torch.dtype | None = None,
    generator: torch.Generator | None = None,
    spare_pages: int = 3,
) -> PagedProblem:
    """Sequences with pages in random order, NaN in every byte that contains no key, and unused table entries that point far past the
    cache. queries: tokens of each sequence, or one number for all. cache_dtype: of the caches, if it is not `dtype`.
    """
    stored = cache_dtype or dtype
    generator = generator or torch.Generator().manual_seed(0)
    counts = [queries] * len(lengths) if isinstance(queries, int) else list(queries)
    pages = [-(-length // page) for length in lengths]
    blocks = sum(pages) + spare_pages
    order = torch.randperm(blocks, generator=generator)[: sum(pages)].to(torch.int32)
    table = torch.full((len(lengths), max([*pages, 0]) + 1), UNUSED, dtype=torch.int32)
    size = (blocks, page, key_heads, head_dim)
    # Integers have no NaN: use the largest.
    unused = 127.0 if stored == torch.int8 else float("nan")
    caches = [torch.full(size, unused) for _ in range(2)]
    for row, used in enumerate(order.split(pages)):
        table[row, : len(used)] = used
        for number, block in enumerate(used.tolist()):
            filled = min(page, lengths[row] - number * page)
            for cache in caches:
                drawn = torch.randn((filled, key_heads, head_dim), generator=generator)
                cache[block, :filled] = (
                    (drawn * 40).round().clamp(-128, 127) if stored == torch.int8 else drawn
                )
    k_cache, v_cache = (
        _with_room(in_layout(cache.to(stored), layout, values), unused)
        for cache, values in zip(caches, (False, True), strict=True)
    )
    q = torch.randn((sum(counts), heads, head_dim), generator=generator).to(dtype)
    ends = None
    if not isinstance(queries, int):
        ends = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    return PagedProblem(
        q,
        k_cache,
        v_cache,
        table,
        torch.tensor(lengths, dtype=torch.int32),
        ends,
        max([*counts, 0]),
    )


def _with_room(cache: torch.Tensor, unused: float) -> torch.Tensor:
    """The same with gaps between the pages, which must not matter."""
    whole = torch.full((len(cache), 2, *cache.shape[1:]), unused).to(cache.dtype)
    whole[:, 1] = cache
    return whole[:, 1]


def in_layout(cache: torch.Tensor, layout: str, values: bool) -> torch.Tensor:
    """A cache of keys or of values (blocks, block_size, heads, D) in this layout."""
    x = 16 // cache.dtype.itemsize
    if layout == "nhd":
        return cache
    if layout == "hnd":
        return cache.transpose(1, 2)
    if not values:
        return cache.unflatten(3, (-1, x)).permute(0, 2, 3, 1, 4)
    if layout == "paged":
        return cache.permute(0, 2, 3, 1)
    return cache.unflatten(1, (-1, x)).permute(0, 3, 1, 4, 2)


def draw_scales(problem: PagedProblem, kind: str, layout: str = "nhd", seed: int = 3) -> torch.Tensor:
    """Scales of quantized caches: for "all" keys, each key "head", "sequence" and key head, or each "key", with NaN where there is none, as
    a view of the tensor (key heads, blocks * block_size) of AITER's writers.
    """
    blocks, block_size, key_heads, _ = in_rows(as_operand(problem.k_cache), layout, False).shape
    generator = torch.Generator().manual_seed(seed)
    unit = 0.025 if problem.k_cache.dtype == torch.int8 else 1.0
    sizes = {"all": (1,), "head": (key_heads,), "sequence": (len(problem.seqused_k), key_heads)}
    if kind != "key":
        return (torch.rand(sizes[kind], generator=generator) + 0.5) * unit
    drawn = torch.rand((key_heads, blocks, block_size), generator=generator).mul_(4).exp_().mul_(unit / 8)
    there = torch.zeros(blocks, block_size, dtype=torch.bool)
    for row, length in zip(problem.block_table.tolist(), problem.seqused_k.tolist(), strict=True):
        for number in range(-(-length // block_size)):
            there[row[number], : length - number * block_size] = True
    return drawn.masked_fill(~there, float("nan")).transpose(0, 1)


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
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
    cache_layout: str = "nhd",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and LSE by PyTorch in float32, or entirely in float64 if that is `dtype`."""
    tensors = (problem.q, problem.k_cache, problem.v_cache)
    if dtype is not None:
        tensors = tuple(in_numbers(tensor).to(dtype) for tensor in tensors)
    scale = problem.q.shape[-1] ** -0.5 if scale is None else scale
    left, right = (max(side, -1) for side in window_size)
    k_scale, v_scale = (scale_tensor(each, problem.q.device) for each in (k_scale, v_scale))
    return paged_in_torch(
        *tensors, problem.block_table, None, problem.seqused_k, problem.cu_seqlens_q, alibi_slopes, sinks, k_scale, v_scale,
        None, problem.max_seqlen_q, LAYOUTS.index(cache_layout), scale, 1.0, causal, left, right, softcap,
    )  # fmt: skip


def in_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """8-bit floats that may be passed as bytes."""
    return tensor.view(dtype_of("fp8", tensor.device)) if tensor.dtype == torch.uint8 else tensor


def scale_tensor(scale: torch.Tensor | float | None, device: torch.device) -> torch.Tensor | None:
    return scale if scale is None or isinstance(scale, torch.Tensor) else torch.tensor([scale], device=device)


@dataclass(frozen=True)
class LatentProblem:
    """Tensors of attention_mla."""

    q: torch.Tensor
    kv_cache: torch.Tensor
    block_table: torch.Tensor
    seqused_k: torch.Tensor
    cu_seqlens_q: torch.Tensor | None
    max_seqlen_q: int

    def arguments(self) -> tuple[object, ...]:
        return (
            self.q,
            self.kv_cache,
            self.block_table,
            self.seqused_k,
            self.cu_seqlens_q,
            self.max_seqlen_q,
        )


def draw_latent(
    lengths: Sequence[int], queries: int | Sequence[int] = 1, *, scaled_rows: bool = False, **options
) -> LatentProblem:
    """Like `draw_paged`, with the same options, one cache and one key head. scaled_rows: rows of 656 bytes."""
    drawn = draw_paged(lengths, queries, key_heads=1, head_dim=LATENT + ROTARY, **options)
    cache = in_scaled_rows(drawn.k_cache) if scaled_rows else drawn.k_cache
    return LatentProblem(
        drawn.q, cache, drawn.block_table, drawn.seqused_k, drawn.cu_seqlens_q, drawn.max_seqlen_q
    )


def in_scaled_rows(cache: torch.Tensor) -> torch.Tensor:
    """From a bfloat16 cache, with gaps between its pages, and invalid values where it has NaN."""
    rows = scaled_rows_of(cache)
    whole = torch.full((len(rows), 2, *rows.shape[1:]), 0xFF, dtype=torch.uint8)
    whole[:, 1] = rows
    return whole[:, 1]


def latents_in_numbers(cache: torch.Tensor) -> torch.Tensor:
    return scaled_rows_in_bfloat16(cache) if has_scaled_rows(cache) else in_numbers(cache)


def latent_in_float(
    problem: LatentProblem,
    dtype: torch.dtype | None = None,
    *,
    scale: float,
    causal: bool = True,
    sinks: torch.Tensor | None = None,
    kv_scale: torch.Tensor | float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Like `in_torch`."""
    q, cache = problem.q, problem.kv_cache
    if dtype is not None:
        q, cache = q.to(dtype), latents_in_numbers(cache).to(dtype)
    return latent_in_torch(
        q, cache if cache.dim() == 4 else cache.unsqueeze(2), problem.block_table, None, problem.seqused_k, problem.cu_seqlens_q,
        sinks, scale_tensor(kv_scale, q.device), problem.max_seqlen_q, scale, 1.0, causal,
    )  # fmt: skip
