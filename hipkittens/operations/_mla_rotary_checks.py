# SPDX-License-Identifier: MIT
"""Checks of mla_rotary: problems for its kernels, examples, parity, benchmarks."""

from __future__ import annotations

import torch

from ..latent_rotary import mla_rotary, rotary_cache_write
from ..quantization import dtype_of
from ._caches import caches_of, mixed_slots
from ._qkv_rotary_checks import tables_of
from ._record import DTYPES, Benchmark, Checks, Example, Parity, ParityProblem, Trial
from ._rotary_parity import turn
from ._tensors import draw, with_gaps


def _latents(tokens, heads, kv_heads, nope, rotary, dtype):
    sizes = ((heads, nope), (heads, rotary), (kv_heads, nope), (kv_heads, rotary))
    return [draw(tokens, *each, dtype=dtype) for each in sizes]


def trial(name: str) -> Trial:
    """Both orders of pairs and of parts, features that fill no vector, and caches of both kinds."""
    dtype = DTYPES[name]

    def run():
        results = []
        for nope, rotary, interleaved in ((128, 64, True), (20, 6, False), (24, 16, True)):
            parts = _latents(11, 3, 1, nope, rotary, dtype)
            tables, slots = tables_of(11, rotary // 2), mixed_slots(11, 16)
            options = {"interleaved": interleaved, "nope_first": nope != 20}
            out = mla_rotary(*parts, *tables, **options)
            results += [
                *out,
                *torch.autograd.grad(out, parts, [torch.ones_like(each) for each in out]),
            ]
            if dtype == torch.float32:
                continue
            codes = dtype_of("fp8", torch.device("cpu"))
            with torch.no_grad():
                for of_cache, q_dtype in ((dtype, None), (codes, codes)):
                    cache = torch.zeros(2, 8, nope + rotary, dtype=dtype).to(of_cache)
                    q, _ = mla_rotary(
                        *parts, *tables, **options, kv_cache=cache, slots=slots, q_dtype=q_dtype
                    )
                    results += [
                        each.view(torch.uint8) if each.dtype.itemsize == 1 else each for each in (q, cache)
                    ]
                q, k = (draw(11, heads, 32, dtype=dtype) for heads in (3, 2))
                caches = caches_of("paged", 1, 16, 2, 32, dtype)
                tables = tables_of(11, 12)
                results += rotary_cache_write(q, k, k, *tables, *caches, slots, layout="paged")
                results += caches
        return results

    return Trial(f"mla_rotary 11 tokens {name}", run)


def representative(name: str) -> Trial:
    """As wide as in DeepSeek V3, with a part of its heads."""

    def run():
        parts = [each.detach() for each in _latents(64, 16, 1, 512, 64, DTYPES[name])]
        return mla_rotary(*parts, *tables_of(64, 32), interleaved=True)

    return Trial(f"mla_rotary N64 H16 latent 512 {name}", run)


def _in_torch(q_nope, q_pe, k_nope, k_pe, tables, interleaved, rows):
    """Rotated in their dtype or in float32, whichever is wider, and rounded once."""
    wide = torch.promote_types(q_pe.dtype, torch.float32)
    turned = [
        turn(each.to(wide), *(table.to(wide) for table in tables), interleaved, rows, -2).to(each.dtype)
        for each in (q_pe, k_pe)
    ]
    return torch.cat((q_nope, turned[0]), -1), torch.cat((k_nope, turned[1]), -1)


def _ours_joined(q_nope, q_pe, k_nope, k_pe):
    tables = (table.to(q_pe.device) for table in tables_of(q_pe.shape[0], q_pe.shape[-1] // 2))
    return torch.cat(mla_rotary(q_nope, q_pe, k_nope, k_pe, *tables, interleaved=True), -2)


def _theirs_joined(q_nope, q_pe, k_nope, k_pe):
    tables = tables_of(q_pe.shape[0], q_pe.shape[-1] // 2)
    parts = (q_nope, q_pe, k_nope, k_pe)
    return torch.cat(_in_torch(*parts, tables, True, torch.arange(q_pe.shape[0])), -2)


def _parity(case, generator) -> ParityProblem:
    dtype, (nope, rotary), (heads, kv_heads) = DTYPES[case["dtype"]], case["features"], case["heads"]
    batch, tokens = case["batch"], case["tokens"]
    inputs = {}
    for name, sizes in (("q_nope", (heads, nope)), ("q_pe", (heads, rotary)),
                        ("k_nope", (kv_heads, nope)), ("k_pe", (kv_heads, rotary))):  # fmt: skip
        values = torch.randn(batch, tokens, *sizes, generator=generator).to(dtype)
        inputs[name] = with_gaps(values, *case["gaps"])
    angles = 100 * torch.rand(tokens, rotary // 2, generator=generator, dtype=torch.float64)
    tables, rows = (angles.cos().float(), angles.sin().float()), torch.randperm(tokens, generator=generator)

    def ours(*parts):
        return mla_rotary(*parts, *tables, interleaved=case["interleaved"], positions=rows)

    def theirs(*parts):
        return _in_torch(*parts, tables, case["interleaved"], rows)

    return ParityProblem(inputs, ours, theirs, "PyTorch's operations in float32, rounded once", ("q", "k"))


def _call(problem, device, cached):
    """One latent for all heads, into consecutive slots as for a prompt."""
    e = problem.extents
    tokens, heads, nope, rotary = e["tokens"], e["heads"], e["nope"], e["rotary"]
    parts = [
        problem.tensor(device, tokens, *sizes)
        for sizes in ((heads, nope), (heads, rotary), (1, nope), (1, rotary))
    ]
    tables = [table.to(device) for table in tables_of(tokens, rotary // 2)]
    options = {"interleaved": True}
    if cached:
        cache = torch.zeros(-(-tokens // 16), 16, nope + rotary, dtype=torch.bfloat16, device=device)
        options |= {"kv_cache": cache, "slots": torch.arange(tokens, device=device)}
    return lambda: mla_rotary(*parts, *tables, **options)


def _refuse(extents):
    odd = extents["rotary"] % 2
    return f"rotary is {extents['rotary']}; pairs are turned, so it has to be even" if odd else None


def _calls(tensor):
    table, slots = tensor(64, 32, dtype=torch.float32), tensor(33, dtype=torch.int64)
    parts = (tensor(33, 16, 512), tensor(33, 16, 64), tensor(33, 512), tensor(33, 64))
    cache, scale = tensor(4, 16, 576), tensor(1, dtype=torch.float32)
    return [
        ("queries and one latent", "mla_rotary", (*parts, table, table), {}),
        ("with a cache", "mla_rotary", (*parts, table, table), {"kv_cache": cache, "slots": slots}),
        (
            "a scale without an fp8 cache",
            "mla_rotary",
            (*parts, table, table),
            {"kv_cache": cache, "slots": slots, "scale": scale},
        ),
    ]


def _exercise(draw):
    parts = [draw(20, *sizes, seed=i) for i, sizes in enumerate(((4, 32), (4, 16), (1, 32), (1, 16)))]
    tables, slots = tables_of(20, 8), torch.arange(20)
    cache = torch.zeros(2, 16, 48, dtype=parts[0].dtype)
    fixed = [each.detach() for each in parts]
    results = mla_rotary(*fixed, *tables, kv_cache=cache, slots=slots)
    return [*mla_rotary(*parts, *tables), *results, cache]


CHECKS = Checks(
    examples=(
        Example(
            "mla_rotary",
            {"q_nope": (40, 4, 128), "q_pe": (40, 4, 64), "k_nope": (40, 1, 128), "k_pe": (40, 1, 64)},
            _ours_joined,
            _theirs_joined,
        ),
    ),
    parity=(
        Parity(
            "mla_rotary",
            {
                # features that are not rotated, and that are
                "features": ((128, 64), (1, 2), (512, 64), (40, 16), (7, 6), (72, 8)),
                "heads": ((4, 1), (1, 1), (8, 2), (5, 5)),
                "tokens": (17, 1, 2, 33, 130),
                "batch": (1, 3),
                "dtype": tuple(DTYPES),
                "interleaved": (True, False),
                "gaps": ((0, 0), (2, 2), (1, 0)),
            },
            _parity,
        ),
    ),
    calls=_calls,
    exercise=_exercise,
    benchmarks=tuple(
        Benchmark(
            name,
            example="8192x16x512x64",
            extents=("tokens", "heads", "nope", "rotary"),
            shapes="64x128x512x64,8192x16x512x64",
            heading=heading,
            bytes=lambda problem, copies=copies: (
                2.0 * problem["tokens"] * (problem["nope"] + problem["rotary"])
                * (2 * problem["heads"] + copies)
            ),
            call=lambda problem, device, cached=cached: _call(problem, device, cached),
            refuse=_refuse,
            chained=True,
        )
        for name, heading, cached, copies in (
            ("mla_rotary", "Rotary embedding and concatenation of MLA heads", False, 2),
            ("mla_rotary_cache", "Rotary embedding and concatenation of MLA heads, with cache write", True, 3),
        )
    ),
)  # fmt: skip
