# SPDX-License-Identifier: MIT
"""AITER's decoding kernels: paged attention (pa) and latent attention (mla), and mla's prefill."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from tests.oracles.aiter.formats import float8, quantised
from tests.oracles.aiter.launch import Buffer, Run, kernel, output

LATENT, VALUES = 576, 512


@dataclasses.dataclass
class Result:
    run: Run
    error: float
    lse_error: float = 0.0
    partial: torch.Tensor | None = None
    lse: torch.Tensor | None = None


class _Errors:
    """Squares of differences and of references, added up over the rows of a ragged result."""

    def __init__(self) -> None:
        self.difference = self.reference = 0.0

    def add(self, result: torch.Tensor, reference: torch.Tensor) -> None:
        self.difference += float((result.double() - reference).square().sum())
        self.reference += float(reference.square().sum())

    @property
    def relative(self) -> float:
        return math.sqrt(self.difference / self.reference)


def paged(
    name: str, contexts: Sequence[int], kv_heads: int, group: int, queries: int = 0, block: int = 16
) -> Result:
    """pa: one workgroup per sequence and key head. `queries` > 0: so many new tokens each (the mtp kernels)."""
    target = name.split("/")[0]
    dtype = torch.bfloat16 if "/pa_bf16" in name else torch.float16
    stored = torch.int8 if "Int8" in name else float8(target) if "Fp8" in name else dtype
    masked, tokens = "msk0" not in name, max(1, queries)
    generator = torch.Generator().manual_seed(3)
    batch, heads, size = len(contexts), kv_heads * group, 128
    blocks = -(-max(contexts) // block)
    count = batch * blocks + 3

    def uniform(*shape):
        return torch.rand(shape, generator=generator) * 2 - 1

    q = uniform(batch * tokens, heads, size).to(dtype)
    table = torch.randperm(count, generator=generator)[: batch * blocks].reshape(batch, blocks).int()
    meanings, caches, scales = [], [], []
    for _ in range(2):
        values = uniform(count, kv_heads, block, size)
        if stored == dtype:
            kept, meaning = values.to(dtype), values.to(dtype).double()
        else:
            kept, scale, meaning = quantised(values, stored)
            scales.append(scale[..., 0].contiguous())
        meanings.append(meaning)
        caches.append(kept if kept.itemsize == 2 else kept.view(torch.uint8))
    lane = 16 // stored.itemsize
    keys = caches[0].reshape(count, kv_heads, block, size // lane, lane).transpose(2, 3)
    values = caches[1].transpose(2, 3).reshape(count, kv_heads, size, block // lane, lane).transpose(2, 3)
    query, cache = Buffer(q), Buffer(keys)
    out = output(q.shape, dtype)
    also = {"KQ": Buffer(scales[0]), "VQ": Buffer(scales[1])} if scales else {}
    arguments = {
        "O": out, "Q": query, "K": cache, "V": Buffer(values), "BT": Buffer(table), "CL": Buffer(torch.tensor(contexts).int()),
        "sclg": math.log2(math.e) / math.sqrt(size), "mblk": blocks, "batch": kv_heads, "Qs": query.stride(0),
        "Bs": cache.stride(0), "KVs": cache.stride(1), **also,
    }  # fmt: skip
    runner = kernel(name)
    if "GQA" in runner.offsets:
        arguments["GQA"] = group
    if "QTP" in runner.offsets and queries:
        arguments["QTP"] = Buffer(torch.arange(0, (batch + 1) * tokens, tokens).int())
    run = runner.launch((kv_heads, batch, 1), arguments)
    errors = _Errors()
    for row, context in enumerate(contexts):
        place = torch.arange(context)
        k, v = (meaning[table[row, place // block].long(), :, place % block] for meaning in meanings)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        for token in range(tokens):
            scores = torch.einsum("hd,thd->ht", q[row * tokens + token].double(), k) / math.sqrt(size)
            if queries and masked:
                scores[:, place > context - tokens + token] = -math.inf
            errors.add(out.tensor[row * tokens + token], torch.einsum("ht,thd->hd", scores.softmax(-1), v))
    return Result(run, errors.relative)


def _latent_rows(stored: torch.dtype, rows: int, heads: int, generator: torch.Generator, factor: float):
    values = torch.randn(rows, heads, LATENT, generator=generator).to(stored)
    return values, values.double() * factor


def overwritten_query(query: torch.Tensor) -> None:
    """What mla_a8w8_qh16_qseqlen2 makes of its queries: see tests/oracles/test_aiter_doubtful.py."""
    query[1::2, 0, :96] = query[1::2, 0, 96:192].clone()


def latent(
    name: str,
    lengths: Sequence[int],
    heads: int,
    tokens: int,
    splits: int = 1,
    page: int = 1,
    seen_query: Callable[[torch.Tensor], None] = lambda query: None,
) -> Result:
    """mla decode: the keys of all heads are one vector of 576, whose first 512 elements are the values.

    `seen_query` may change the reference's queries [tokens, heads, 576] in place.
    """
    generator = torch.Generator().manual_seed(5)
    target, batch, rows = name.split("/")[0], len(lengths), len(lengths) * tokens
    sub_queries = 16 if "subQ16" in name else 128
    q_type = torch.bfloat16 if "a16" in name else float8(target)
    kv_type = torch.bfloat16 if "w16" in name else float8(target)
    q_scale, kv_scale = (
        1.0 if kind == torch.bfloat16 else factor for kind, factor in ((q_type, 0.9), (kv_type, 1.1))
    )
    pages = [-(-length // page) for length in lengths]
    count = sum(pages) + 5
    q, q_meaning = _latent_rows(q_type, rows, heads, generator, q_scale)
    seen_query(q_meaning)
    kv, kv_meaning = _latent_rows(kv_type, count * page, 1, generator, kv_scale)
    starts = torch.tensor([0, *pages]).cumsum(0).int()
    table = torch.randperm(count, generator=generator)[: sum(pages)].int()
    # One split leaves the final result in bf16, except in the kernel that serves 16 heads at a time.
    direct = splits == 1 and sub_queries != 16
    query, cache = Buffer(q), Buffer(kv)
    partial = (
        output((rows, heads, VALUES), torch.bfloat16)
        if direct
        else output((rows, splits, heads, VALUES), torch.float32)
    )
    lse = output((rows, splits, heads, 1), torch.float32)

    def ints(values) -> Buffer:
        return Buffer(torch.as_tensor(values).int())

    # The metadata's names are paged attention's; the offsets are those of AITER's host structure.
    arguments = {
        0: partial, 16: lse, 32: query, 48: cache, 64: Buffer(starts), 80: Buffer(table),
        96: ints([(length - 1) % page + 1 for length in lengths]), 112: 1 / math.sqrt(LATENT), 128: heads * tokens,
        144: splits, 160: query.stride(0) * tokens, 176: cache.stride(0) * page, 192: page.bit_length() - 1,
    }  # fmt: skip
    size = kernel(name).metadata.argument_bytes
    further = {
        208: ints(range(0, (batch + 1) * tokens, tokens)), 224: ints(range(0, (batch + 1) * splits, splits)), 240: partial,
        256: Buffer(torch.tensor([q_scale])), 272: Buffer(torch.tensor([kv_scale])), 288: splits,
    }  # fmt: skip
    arguments |= {offset: value for offset, value in further.items() if offset < size}
    run = kernel(name).launch((-(-tokens * heads // sub_queries), batch, splits), arguments)
    errors, lse_error = _Errors(), 0.0
    for sequence, length in enumerate(lengths):
        place = torch.arange(length)
        rows_of = table[starts[sequence] : starts[sequence + 1]].long()[place // page] * page + place % page
        keys = kv_meaning[rows_of, 0]
        for token in range(tokens):
            row = sequence * tokens + token
            scores = q_meaning[row] @ keys.T / math.sqrt(LATENT)
            scores[:, place > length - tokens + token] = -math.inf
            expected = scores.softmax(-1) @ keys[:, :VALUES]
            if direct:
                errors.add(partial.tensor[row], expected)
                continue
            # What stage 2 does: weights from the logarithms; splits beyond the keys are not written.
            valid = min(splits, -(-length // (64 if heads == 16 and tokens == 1 else 16)))
            logarithms = lse.tensor[row, :valid, :, 0].double()
            weights = logarithms.softmax(0)
            errors.add((weights[..., None] * partial.tensor[row, :valid].double()).sum(0), expected)
            lse_error = max(lse_error, float((logarithms.logsumexp(0) - scores.logsumexp(-1)).abs().max()))
    return Result(run, errors.relative, lse_error, partial.tensor, lse.tensor)


def latent_prefill(name: str, lengths: Sequence[int], heads: int) -> Result:
    generator = torch.Generator().manual_seed(6)
    total, batch = sum(lengths), len(lengths)
    q, _ = _latent_rows(torch.bfloat16, total, heads, generator, 1.0)
    kv, _ = _latent_rows(torch.bfloat16, total + 7, 1, generator, 1.0)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    table = torch.randperm(total + 7, generator=generator)[:total].int()
    query, cache, offsets = Buffer(q), Buffer(kv), Buffer(starts)
    out = output((total, heads, VALUES), torch.bfloat16)
    arguments = {
        0: out, 16: output((total, heads), torch.float32), 32: query, 48: cache, 64: offsets, 80: Buffer(table),
        96: Buffer(torch.ones(batch).int()), 112: 1 / math.sqrt(LATENT), 128: heads, 144: 1, 160: query.stride(0),
        176: cache.stride(0), 192: 0, 208: offsets,
    }  # fmt: skip
    run = kernel(name).launch((-(-max(lengths) * heads // 128), batch, 1), arguments)
    errors = _Errors()
    for sequence, length in enumerate(lengths):
        keys = kv[table[starts[sequence] : starts[sequence + 1]].long(), 0].double()
        for token in range(length):
            row = int(starts[sequence]) + token
            weights = (q[row].double() @ keys[: token + 1].T / math.sqrt(LATENT)).softmax(-1)
            errors.add(out.tensor[row], weights @ keys[: token + 1, :VALUES])
    return Result(run, errors.relative)
