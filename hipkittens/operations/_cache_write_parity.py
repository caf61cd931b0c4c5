# SPDX-License-Identifier: MIT
"""Parity of writes to caches: rotated, and quantized with scales."""

from __future__ import annotations

import torch

from ..cache import cache_write, rounded_to_codes
from ..latent_rotary import rotary_cache_write
from ..quantization import dtype_of
from ._caches import caches_of, mixed_slots
from ._record import DTYPES, Parity, ParityProblem
from ._rotary_parity import turn
from ._tensors import with_gaps


def _parity(case, generator) -> ParityProblem:
    """The results, and the slots of caches that begin as zeros."""
    dtype, (features, pairs), (heads, kv_heads) = DTYPES[case["dtype"]], case["features"], case["heads"]
    batch, tokens, layout = case["batch"], case["tokens"], case["layout"]
    inputs = {}
    for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        values = torch.randn(batch, tokens, count, features, generator=generator).to(dtype)
        inputs[name] = with_gaps(values, *case["gaps"])
    angles = 100 * torch.rand(tokens, pairs, generator=generator, dtype=torch.float64)
    tables = angles.cos().float(), angles.sin().float()
    slots = mixed_slots(batch * tokens, 16 * (batch * tokens // 16 + 2))

    def ours(q, k, v):
        caches = caches_of(layout, batch * tokens // 16 + 2, 16, kv_heads, features, q.dtype)
        results = rotary_cache_write(
            *(each.detach() for each in (q, k, v)), *tables, *caches, slots, layout=layout,
            interleaved=case["interleaved"],
        )  # fmt: skip
        return *results, *(cache.transpose(1, 2) if layout == "hnd" else cache for cache in caches)

    def theirs(q, k, v):
        wide, rows = torch.promote_types(q.dtype, torch.float32), torch.arange(tokens)
        cos, sin = (table.to(wide) for table in tables)
        q, k = (
            turn(each.detach().to(wide), cos, sin, case["interleaved"], rows, -2).to(each.dtype)
            for each in (q, k)
        )
        caches = [q.new_zeros(batch * tokens // 16 + 2, 16, kv_heads, features) for _ in range(2)]
        kept = slots >= 0
        for cache, each in zip(caches, (k, v.detach()), strict=True):
            cache.flatten(0, 1)[slots[kept]] = each.flatten(0, 1)[kept]
        return q, k, *caches

    baseline, outputs = (
        "PyTorch's operations in float32, rounded once",
        ("q", "k", "key_cache", "value_cache"),
    )
    return ParityProblem(inputs, ours, theirs, baseline, outputs)


def _scaled_parity(case, generator) -> ParityProblem:
    """Scales for each token and head or for groups of slots, and the dequantized values."""
    (heads, features), tokens, layout = case["heads"], case["tokens"], case["layout"]
    group, dtype = case["group"], DTYPES[case["dtype"]]
    blocks = tokens // 16 + 4
    codes = torch.int8 if case["codes"] == "int8" else dtype_of("fp8", torch.device("cpu"))
    inputs = {
        name: with_gaps(torch.randn(tokens, heads, features, generator=generator).to(dtype), *case["gaps"])
        for name in ("key", "value")
    }
    slots = torch.randperm(16 * blocks, generator=generator)[:tokens]

    def ours(*rows):
        caches = caches_of(layout, blocks, 16, heads, features, codes)
        sizes = (blocks, 16, heads) if group == 1 else (blocks * 16 // group, heads)
        key_scales, value_scales = (torch.zeros(sizes) for _ in range(2))
        cache_write(
            *(each.detach() for each in rows), *caches, slots, layout=layout, key_scales=key_scales,
            value_scales=value_scales,
        )  # fmt: skip
        written = []
        for cache, scales in zip(caches, (key_scales, value_scales), strict=True):
            of_slots = scales.reshape(-1, heads)[slots // group]
            by_slot = (cache.transpose(1, 2) if layout == "hnd" else cache).flatten(0, 1)
            written += [by_slot[slots].float() * of_slots[..., None], of_slots]
        return tuple(written)

    def theirs(*rows):
        written = []
        for each in rows:
            wide = each.detach().to(torch.promote_types(each.dtype, torch.float32))
            magnitudes = wide.abs().amax(-1)
            largest = wide.new_zeros(blocks * 16 // group, heads)
            largest.scatter_reduce_(0, (slots // group)[:, None].expand_as(magnitudes), magnitudes, "amax")
            scales = (largest / (127 if codes == torch.int8 else torch.finfo(codes).max))[slots // group]
            # In float64: the dequantized values.
            if wide.dtype == torch.float32:
                wide = rounded_to_codes(wide, codes, scales[..., None]).float() * scales[..., None]
            written += [wide, scales]
        return tuple(written)

    baseline = "PyTorch's operations in float32, rounded to quantized values"
    return ParityProblem(inputs, ours, theirs, baseline, ("keys", "key_scales", "values", "value_scales"))


PARITY = (
    Parity(
        "rotary_cache_write",
        {
            # features, pairs
            "features": ((64, 32), (2, 1), (128, 64), (80, 40), (96, 16), (17, 3), (72, 36)),
            "heads": ((4, 2), (1, 1), (8, 1), (5, 5)),
            "tokens": (17, 1, 2, 33, 130),
            "batch": (1, 3),
            "dtype": tuple(name for name, dtype in DTYPES.items() if dtype.itemsize == 2),
            "layout": ("nhd", "hnd"),
            "interleaved": (False, True),
            "gaps": ((0, 0), (2, 2), (1, 0)),
        },
        _parity,
    ),
    Parity(
        "cache_write",
        {
            # heads, features
            "heads": ((4, 64), (1, 1), (8, 128), (5, 17), (3, 255), (2, 512)),
            "tokens": (17, 1, 2, 130, 257),
            "group": (1, 16, 8, 4),  # slots that share a scale
            "codes": ("int8", "fp8"),
            "dtype": tuple(name for name, dtype in DTYPES.items() if dtype.itemsize == 2),
            "layout": ("nhd", "hnd"),
            "gaps": ((0, 0), (2, 2), (1, 0)),
        },
        _scaled_parity,
    ),
)
