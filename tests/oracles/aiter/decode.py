# SPDX-License-Identifier: MIT
"""AITER's decoding kernels: paged attention (pa) and latent attention (mla), and mla's prefill."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from tests.oracles.aiter.formats import float8, quantised
from tests.oracles.aiter.launch import Buffer, Run, kernel, output, relative_error

LATENT, VALUES = 576, 512


@dataclasses.dataclass
class Result:
    """out: the object's result, for latent attention merged from its splits. reference: in float64."""

    run: Run
    error: float
    out: torch.Tensor
    reference: torch.Tensor
    lse_error: float = 0.0
    partial: torch.Tensor | None = None
    lse: torch.Tensor | None = None


def paged_arguments(name: str) -> tuple:
    """The arguments of `paged_problem` with which a kernel of pa is tested: two sequences, and the group and new tokens that its name
    states."""
    if "gqa10" in name:
        return [1500, 77], 1, 10, int(name.split("qlen")[1][0]), 1024
    return [300, 77], 2, 16 if "gqa16" in name else 8, 2 if "_mtp_" in name else 0, 16


def heads_of(name: str) -> int:
    """The number of heads of an mla kernel."""
    return 128 if "128" in name.replace("subQ128_mqa128", "128").replace("m32x4", "") else 16


def prefill_arguments(name: str) -> tuple:
    """Arguments of `prefill_problem`: short sequences, the shorter the more heads there are."""
    return ([20, 9], 16) if heads_of(name) == 16 else ([5, 3], 128)


def tokens_of(name: str) -> tuple[int, ...]:
    """New tokens per sequence that a decoding kernel of mla supports, or those of them that are tested."""
    if "qseqlen" in name:
        return (int(name.split("qseqlen")[1][0]),)
    if heads_of(name) == 128 or "subQ16" in name:
        return (1,)
    return (2, 4) if "m16x4" in name else (7,)


@dataclasses.dataclass
class PagedProblem:
    """Inputs of a pa kernel: `tokens` new tokens per sequence, caches in AITER's layout ("asm") with a scale for each key.

    caches    (blocks, kv_heads, 128 / x, block, x) and (blocks, kv_heads, block / x, 128, x), x elements in 16 bytes
    meanings  (blocks, kv_heads, block, 128): their dequantized values, in float64
    scales    (blocks, kv_heads, block) each, or none
    """

    q: torch.Tensor
    caches: list[torch.Tensor]
    meanings: list[torch.Tensor]
    scales: list[torch.Tensor]
    table: torch.Tensor
    contexts: Sequence[int]
    tokens: int
    masked: bool

    def reference(self) -> torch.Tensor:
        heads, size = self.q.shape[1:]
        block, group = self.meanings[0].shape[2], heads // self.meanings[0].shape[1]
        out = torch.empty(self.q.shape, dtype=torch.float64)
        for row, context in enumerate(self.contexts):
            place = torch.arange(context)
            k, v = (
                meaning[self.table[row, place // block].long(), :, place % block].repeat_interleave(group, 1)
                for meaning in self.meanings
            )
            for token in range(self.tokens):
                at = row * self.tokens + token
                scores = torch.einsum("hd,thd->ht", self.q[at].double(), k) / math.sqrt(size)
                if self.masked:
                    scores[:, place > context - self.tokens + token] = -math.inf
                out[at] = torch.einsum("ht,thd->hd", scores.softmax(-1), v)
        return out


def paged_problem(
    name: str, contexts: Sequence[int], kv_heads: int, group: int, queries: int = 0, block: int = 16
) -> PagedProblem:
    """`queries` > 0: so many new tokens per sequence (the mtp kernels)."""
    target = name.split("/")[0]
    dtype = torch.bfloat16 if "/pa_bf16" in name else torch.float16
    stored = torch.int8 if "Int8" in name else float8(target) if "Fp8" in name else dtype
    tokens = max(1, queries)
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
        caches.append(kept)
    lane = 16 // stored.itemsize
    keys = caches[0].reshape(count, kv_heads, block, size // lane, lane).transpose(2, 3).contiguous()
    values = caches[1].reshape(count, kv_heads, block // lane, lane, size).transpose(3, 4).contiguous()
    masked = queries > 0 and "msk0" not in name
    return PagedProblem(q, [keys, values], meanings, scales, table, contexts, tokens, masked)


def paged(name: str, *arguments) -> Result:
    """Run pa on a `paged_problem` of these arguments: one workgroup per sequence and key head."""
    problem = paged_problem(name, *arguments)
    kv_heads = problem.meanings[0].shape[1]
    batch, tokens = len(problem.contexts), problem.tokens
    query, cache, values = (
        Buffer(each if each.itemsize == 2 else each.view(torch.uint8))
        for each in (problem.q, *problem.caches)
    )
    out = output(problem.q.shape, problem.q.dtype)
    also = dict(zip(("KQ", "VQ"), map(Buffer, problem.scales), strict=False))
    launched = {
        "O": out, "Q": query, "K": cache, "V": values, "BT": Buffer(problem.table),
        "CL": Buffer(torch.tensor(problem.contexts).int()), "sclg": math.log2(math.e) / math.sqrt(problem.q.shape[2]),
        "mblk": problem.table.shape[1], "batch": kv_heads, "Qs": query.stride(0), "Bs": cache.stride(0), "KVs": cache.stride(1),
        **also,
    }  # fmt: skip
    runner = kernel(name)
    if "GQA" in runner.offsets:
        launched["GQA"] = problem.q.shape[1] // kv_heads
    if "QTP" in runner.offsets and len(arguments) > 3 and arguments[3]:
        launched["QTP"] = Buffer(torch.arange(0, (batch + 1) * tokens, tokens).int())
    run = runner.launch((kv_heads, batch, 1), launched)
    reference = problem.reference()
    return Result(run, relative_error(out.tensor, reference), out.tensor, reference)


def overwritten_query(query: torch.Tensor) -> None:
    """What mla_a8w8_qh16_qseqlen2 turns its queries into: see tests/oracles/test_aiter_doubtful.py."""
    query[1::2, 0, :96] = query[1::2, 0, 96:192].clone()


@dataclasses.dataclass
class LatentProblem:
    """Inputs of an mla kernel: `tokens` new tokens per sequence. The keys of all heads are one vector of 576 elements, whose first 512
    elements are the values.

    q       (rows, heads, 576), bfloat16 or 8-bit floats to be multiplied by q_scale
    kv      (pages * page, 1, 576), likewise; page `table[starts[b] + j]` holds keys j * page .. of sequence b
    """

    q: torch.Tensor
    q_scale: float
    kv: torch.Tensor
    kv_scale: float
    starts: torch.Tensor
    table: torch.Tensor
    lengths: Sequence[int]
    tokens: int
    page: int

    def reference(
        self, seen_query: Callable[[torch.Tensor], None] = lambda query: None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Out (rows, heads, 512) and the logarithms of sums (rows, heads), in float64. `seen_query` may change queries in place."""
        query, meaning = self.q.double() * self.q_scale, self.kv.double() * self.kv_scale
        seen_query(query)
        out = torch.empty((*query.shape[:2], VALUES), dtype=torch.float64)
        lse = torch.empty(query.shape[:2], dtype=torch.float64)
        for sequence, length in enumerate(self.lengths):
            place = torch.arange(length)
            pages = self.table[self.starts[sequence] : self.starts[sequence + 1]].long()
            keys = meaning[pages[place // self.page] * self.page + place % self.page, 0]
            for token in range(self.tokens):
                row = sequence * self.tokens + token
                scores = query[row] @ keys.T / math.sqrt(LATENT)
                scores[:, place > length - self.tokens + token] = -math.inf
                out[row], lse[row] = scores.softmax(-1) @ keys[:, :VALUES], scores.logsumexp(-1)
        return out, lse


def latent_problem(
    name: str, lengths: Sequence[int], heads: int, tokens: int, page: int = 1
) -> LatentProblem:
    generator = torch.Generator().manual_seed(5)
    target = name.split("/")[0]
    q_type = torch.bfloat16 if "a16" in name else float8(target)
    kv_type = torch.bfloat16 if "w16" in name else float8(target)
    pages = [-(-length // page) for length in lengths]
    count = sum(pages) + 5
    q = torch.randn(len(lengths) * tokens, heads, LATENT, generator=generator).to(q_type)
    kv = torch.randn(count * page, 1, LATENT, generator=generator).to(kv_type)
    return LatentProblem(
        q,
        1.0 if q_type == torch.bfloat16 else 0.9,
        kv,
        1.0 if kv_type == torch.bfloat16 else 1.1,
        torch.tensor([0, *pages]).cumsum(0).int(),
        torch.randperm(count, generator=generator)[: sum(pages)].int(),
        lengths,
        tokens,
        page,
    )


def latent(
    name: str,
    lengths: Sequence[int],
    heads: int,
    tokens: int,
    splits: int = 1,
    page: int = 1,
    seen_query: Callable[[torch.Tensor], None] = lambda query: None,
) -> Result:
    """mla decode of a `latent_problem`; its splits are merged here as stage 2 merges them. `seen_query`: passed to the reference."""
    problem = latent_problem(name, lengths, heads, tokens, page)
    batch, rows = len(lengths), len(lengths) * tokens
    sub_queries = 16 if "subQ16" in name else 128
    # One split leaves the final result in bf16, except in the kernel that serves 16 heads at a time.
    direct = splits == 1 and sub_queries != 16
    query, cache = Buffer(problem.q), Buffer(problem.kv)
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
        0: partial, 16: lse, 32: query, 48: cache, 64: Buffer(problem.starts), 80: Buffer(problem.table),
        96: ints([(length - 1) % page + 1 for length in lengths]), 112: 1 / math.sqrt(LATENT), 128: heads * tokens,
        144: splits, 160: query.stride(0) * tokens, 176: cache.stride(0) * page, 192: page.bit_length() - 1,
    }  # fmt: skip
    size = kernel(name).metadata.argument_bytes
    further = {
        208: ints(range(0, (batch + 1) * tokens, tokens)), 224: ints(range(0, (batch + 1) * splits, splits)), 240: partial,
        256: Buffer(torch.tensor([problem.q_scale])), 272: Buffer(torch.tensor([problem.kv_scale])), 288: splits,
    }  # fmt: skip
    arguments |= {offset: value for offset, value in further.items() if offset < size}
    run = kernel(name).launch((-(-tokens * heads // sub_queries), batch, splits), arguments)
    expected, expected_lse = problem.reference(seen_query)
    if direct:
        error = relative_error(partial.tensor, expected)
        return Result(run, error, partial.tensor, expected, 0.0, partial.tensor, lse.tensor)
    out, lse_error = torch.empty_like(expected), 0.0
    for row in range(rows):
        # As stage 2 does: weights from the logarithms; splits beyond the keys are not written.
        valid = min(splits, -(-lengths[row // tokens] // (64 if heads == 16 and tokens == 1 else 16)))
        logarithms = lse.tensor[row, :valid, :, 0].double()
        weights = logarithms.softmax(0)
        out[row] = (weights[..., None] * partial.tensor[row, :valid].double()).sum(0)
        lse_error = max(lse_error, float((logarithms.logsumexp(0) - expected_lse[row]).abs().max()))
    return Result(run, relative_error(out, expected), out, expected, lse_error, partial.tensor, lse.tensor)


@dataclasses.dataclass
class PrefillProblem:
    """Sequences all of whose tokens are new: q (tokens, heads, 576), and kv (pages, 1, 576) with one token per page, in random order."""

    q: torch.Tensor
    kv: torch.Tensor
    starts: torch.Tensor
    table: torch.Tensor
    lengths: Sequence[int]

    def reference(self) -> torch.Tensor:
        out = torch.empty((*self.q.shape[:2], VALUES), dtype=torch.float64)
        for sequence, length in enumerate(self.lengths):
            first = int(self.starts[sequence])
            keys = self.kv[self.table[first : first + length].long(), 0].double()
            for token in range(length):
                scores = self.q[first + token].double() @ keys[: token + 1].T / math.sqrt(LATENT)
                out[first + token] = scores.softmax(-1) @ keys[: token + 1, :VALUES]
        return out


def prefill_problem(lengths: Sequence[int], heads: int) -> PrefillProblem:
    generator = torch.Generator().manual_seed(6)
    total = sum(lengths)
    return PrefillProblem(
        torch.randn(total, heads, LATENT, generator=generator).bfloat16(),
        torch.randn(total + 7, 1, LATENT, generator=generator).bfloat16(),
        torch.tensor([0, *lengths]).cumsum(0).int(),
        torch.randperm(total + 7, generator=generator)[:total].int(),
        lengths,
    )


def latent_prefill(name: str, lengths: Sequence[int], heads: int) -> Result:
    problem = prefill_problem(lengths, heads)
    query, cache, offsets = Buffer(problem.q), Buffer(problem.kv), Buffer(problem.starts)
    out = output((*problem.q.shape[:2], VALUES), torch.bfloat16)
    arguments = {
        0: out, 16: output(problem.q.shape[:2], torch.float32), 32: query, 48: cache, 64: offsets, 80: Buffer(problem.table),
        96: Buffer(torch.ones(len(lengths)).int()), 112: 1 / math.sqrt(LATENT), 128: heads, 144: 1, 160: query.stride(0),
        176: cache.stride(0), 192: 0, 208: offsets,
    }  # fmt: skip
    run = kernel(name).launch((-(-max(lengths) * heads // 128), len(lengths), 1), arguments)
    reference = problem.reference()
    return Result(run, relative_error(out.tensor, reference), out.tensor, reference)
