# SPDX-License-Identifier: MIT
"""Problems of an indexer's logits, and PyTorch's answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..indexer_logits import SCALE_BYTES, logits_in_torch, paged_logits_in_torch, split_blocks
from ._attention_paged_problems import UNUSED, in_numbers


@dataclass(frozen=True)
class LogitsProblem:
    """Tensors of mqa_logits."""

    q: torch.Tensor
    k: torch.Tensor
    k_scale: torch.Tensor | None
    weights: torch.Tensor
    start: torch.Tensor
    end: torch.Tensor

    def arguments(self) -> tuple[torch.Tensor | None, ...]:
        return self.q, self.k, self.k_scale, self.weights, self.start, self.end

    def in_torch(self, dtype: torch.dtype = torch.float32, summed: int | None = None) -> torch.Tensor:
        q, k, *rest = self.arguments()
        return logits_in_torch(in_numbers(q), in_numbers(k), *rest, dtype=dtype, summed=summed)


def draw_logits(
    ranges: Sequence[tuple[int, int]],
    keys: int,
    *,
    heads: int = 64,
    size: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    scaled: bool = True,
    generator: torch.Generator | None = None,
) -> LogitsProblem:
    """A token for each range of keys; NaN in the keys and scales that no token sees."""
    generator = generator or torch.Generator().manual_seed(0)
    tokens = len(ranges)
    start, end = (torch.tensor([each[side] for each in ranges], dtype=torch.int32) for side in (0, 1))
    places = torch.arange(keys)
    seen = ((places >= start[:, None]) & (places < end[:, None])).any(0)
    k = torch.randn((keys, size), generator=generator).masked_fill(~seen[:, None], float("nan"))
    scale = (torch.rand(keys, generator=generator) + 0.5).masked_fill(~seen, float("nan"))
    return LogitsProblem(
        torch.randn((tokens, heads, size), generator=generator).to(dtype),
        k.to(dtype),
        scale if scaled else None,
        torch.randn((tokens, heads), generator=generator),
        start,
        end,
    )


@dataclass(frozen=True)
class PagedLogitsProblem:
    """Tensors of mqa_logits_paged."""

    q: torch.Tensor
    kv_cache: torch.Tensor
    weights: torch.Tensor
    context_lens: torch.Tensor
    block_table: torch.Tensor
    max_context_len: int

    def arguments(self) -> tuple[torch.Tensor | int, ...]:
        return (
            self.q,
            self.kv_cache,
            self.weights,
            self.context_lens,
            self.block_table,
            self.max_context_len,
        )

    def in_torch(self, dtype: torch.dtype = torch.float32, summed: int | None = None) -> torch.Tensor:
        q, cache, *rest = self.arguments()
        return paged_logits_in_torch(in_numbers(q).flatten(0, 1), cache, *rest, dtype=dtype, summed=summed)


def draw_paged_logits(
    lengths: Sequence[int],
    tokens: int = 1,
    *,
    heads: int = 64,
    size: int = 128,
    page: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    room: int = 5,
    generator: torch.Generator | None = None,
) -> PagedLogitsProblem:
    """Sequences with pages in random order, with gaps between pages, NaN in all bytes that contain no key and no scale of one, and unused
    table entries that point far past the cache. room: columns of the result past the longest sequence, or missing ones if negative.
    """
    generator = generator or torch.Generator().manual_seed(0)
    quantized = dtype.itemsize == 1
    pages = [-(-length // page) for length in lengths]
    blocks = sum(pages) + 3
    order = torch.randperm(blocks, generator=generator)[: sum(pages)]
    columns = max([*lengths, 0]) + room
    width = max([*pages, -(-columns // page)]) + 1
    table = torch.full((len(lengths), width), UNUSED, dtype=torch.int32)
    row = size + SCALE_BYTES if quantized else size
    if quantized:
        cache = torch.full((blocks, 2, page, row), 0xFF, dtype=torch.uint8)[:, 1]
        cache.view(torch.uint8)[...] = torch.tensor(float("nan")).to(dtype).view(torch.uint8)
        keys, scales = split_blocks(cache.view(dtype), size)
        keys = keys.view(dtype)
        scales.fill_(float("nan"))
    else:
        cache = torch.full((blocks, 2, page, row), float("nan"), dtype=dtype)[:, 1]
        keys, scales = cache, None
    for number, used in enumerate(order.split(pages)):
        table[number, : len(used)] = used.to(torch.int32)
        for place, block in enumerate(used.tolist()):
            filled = min(page, lengths[number] - place * page)
            keys[block, :filled] = torch.randn((filled, size), generator=generator).to(dtype)
            if scales is not None:
                scales[block, :filled] = torch.rand(filled, generator=generator) + 0.5
    return PagedLogitsProblem(
        torch.randn((len(lengths), tokens, heads, size), generator=generator).to(dtype),
        cache,
        torch.randn((len(lengths) * tokens, heads), generator=generator),
        torch.tensor(lengths, dtype=torch.int32),
        table,
        columns,
    )
