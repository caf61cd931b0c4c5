# SPDX-License-Identifier: MIT
"""Checks of writes to caches: problems for their kernels, examples, parity, benchmarks."""

from __future__ import annotations

import torch

from ..cache import cache_write, indexer_cache_write, mla_cache_write
from ..latent_rotary import rotary_cache_write
from ._cache_write_parity import PARITY
from ._cache_write_trials import trial
from ._caches import caches_of, mixed_slots
from ._qkv_rotary_checks import tables_of
from ._record import Benchmark, Checks, Example, Table
from ._rotary_parity import turn
from ._tables import TOKEN_SIZES


def _example(write):
    """Slots of a cache that begins as zeros; the operation, or an assignment."""

    def call(key):
        slots = mixed_slots(33, 48).to(key.device)
        keys, values = (key.new_zeros(3, 16, 4, 64) for _ in range(2))
        write(key, keys, values, slots)
        return torch.cat((keys, values))

    return call


def _by_assignment(key, keys, values, slots):
    kept = slots >= 0
    for cache, rows in ((keys, key), (values, -key)):
        cache.flatten(0, 1)[slots[kept]] = rows[kept]


def _written(write):
    """The contents of caches of zeros after a write, and what it returns."""

    def call(q, k, v):
        caches = [k.new_zeros(3, 16, *k.shape[1:]) for _ in range(2)]
        slots, tables = mixed_slots(k.shape[0], 48).to(k.device), tables_of(k.shape[0], k.shape[-1] // 2)
        results = write(q, k, v, *(table.to(k.device) for table in tables), *caches, slots)
        return torch.cat([each.flatten() for each in (*results, *caches)])

    return call


def _turned_by_assignment(q, k, v, cos, sin, key_cache, value_cache, slots):
    wide = torch.promote_types(q.dtype, torch.float32)
    rows = torch.arange(k.shape[0])
    q, k = (
        turn(each.to(wide), cos.to(wide), sin.to(wide), False, rows, -2).to(each.dtype) for each in (q, k)
    )
    kept = slots >= 0
    for cache, values in ((key_cache, k), (value_cache, v)):
        cache.flatten(0, 1)[slots[kept]] = values[kept]
    return q, k


def _call(problem, device, layout):
    """Consecutive slots, as for a prompt."""
    e = problem.extents
    key, value = (problem.tensor(device, e["tokens"], e["heads"], e["features"]) for _ in range(2))
    blocks = -(-e["tokens"] // 16)
    caches = caches_of(layout, blocks, 16, e["heads"], e["features"], torch.bfloat16, device)
    slots = torch.arange(e["tokens"], device=device)
    return lambda: cache_write(key, value, *caches, slots, layout=layout)


def _scaled_call(problem, device, groups_of):
    """Quantized values with a scale for each token and head, or for each block and head."""
    e = problem.extents
    key, value = (problem.tensor(device, e["tokens"], e["heads"], e["features"]) for _ in range(2))
    blocks = -(-e["tokens"] // 16)
    caches = caches_of("nhd", blocks, 16, e["heads"], e["features"], torch.int8, device)
    sizes = (blocks, e["heads"]) if groups_of == "block" else (blocks, 16, e["heads"])
    scales = [torch.ones(sizes, device=device) for _ in range(2)]
    slots = torch.arange(e["tokens"], device=device)
    return lambda: cache_write(key, value, *caches, slots, key_scales=scales[0], value_scales=scales[1])


def _rotary_call(problem, device):
    e = problem.extents
    q, k, v = (problem.tensor(device, e["N"], e[heads], e["D"]) for heads in "HKK")
    tables = [table.to(device) for table in tables_of(e["N"], e["D"] // 2)]
    caches = caches_of("nhd", -(-e["N"] // 16), 16, e["K"], e["D"], torch.bfloat16, device)
    slots = torch.arange(e["N"], device=device)
    return lambda: rotary_cache_write(q, k, v, *tables, *caches, slots)


def _refuse(extents):
    return (
        None
        if extents["features"] % 8 == 0
        else f"features is {extents['features']}; it has to be a multiple of 8"
    )


def _calls(tensor):
    key, slots = tensor(7, 4, 64), tensor(7, dtype=torch.int64)
    paged = tensor(3, 4, 8, 16, 8), tensor(3, 4, 64, 16)
    bytes_of = [tensor(3, 16, 4, 64, dtype=torch.uint8) for _ in range(2)]
    whole = [tensor(3, 16, 4, 64, dtype=torch.int8) for _ in range(2)]
    scale, table, scales = (tensor(*sizes, dtype=torch.float32) for sizes in ((1,), (7, 32), (3, 16, 4)))
    return [
        ("paged, x features adjacent", "cache_write", (key, key, *paged, slots), {"layout": "paged"}),
        ("fp8, one scale each", "cache_write", (key, key, *bytes_of, slots), {"k_scale": scale, "v_scale": scale}),
        ("a scale without fp8 caches", "cache_write", (key, key, *paged, slots), {"layout": "paged", "k_scale": scale}),
        ("latents in rows that contain their scales", "mla_cache_write",
         (tensor(7, 512), tensor(7, 64), tensor(3, 16, 656, dtype=torch.uint8), slots), {}),
        ("rotary keys with a head dimension", "mla_cache_write",
         (tensor(7, 512), tensor(7, 1, 64), tensor(3, 16, 576), slots), {}),
        ("fp8, one scale per token and head", "cache_write", (key, key, *bytes_of, slots),
         {"key_scales": scales, "value_scales": scales}),
        ("int8, one scale per block and head", "cache_write", (key, key, *whole, slots),
         {"key_scales": scales[:, 0], "value_scales": scales[:, 0]}),
        ("int8, one scale each", "cache_write", (key, key, *whole, slots), {"k_scale": scale, "v_scale": scale}),
        ("keys of an indexer", "indexer_cache_write", (tensor(7, 128), tensor(3, 16, 132, dtype=torch.uint8), slots),
         {"powers_of_two": True}),
        ("with rotary embedding", "rotary_cache_write", (key, key, key, table, table, *bytes_of, slots), {"k_scale": scale}),
    ]  # fmt: skip


def _exercised(draw):
    key, slots = draw(20, 2, 32).detach(), torch.arange(20)
    caches = caches_of("nhd", 2, 16, 2, 32, key.dtype)
    cache_write(key, key, *caches, slots)
    codes = caches_of("nhd", 2, 16, 2, 32, torch.uint8)
    scales = [torch.zeros(2, 16, 2) for _ in range(2)]
    cache_write(key, key, *codes, slots, key_scales=scales[0], value_scales=scales[1])
    of_blocks = [torch.zeros(2, 2) for _ in range(2)]
    cache_write(key, key, *codes, slots, key_scales=of_blocks[0], value_scales=of_blocks[1])
    indexer = torch.zeros(2, 16, 36, dtype=torch.uint8)
    indexer_cache_write(key[:, 0], indexer, slots, group=32)
    latent = torch.zeros(2, 16, 64, dtype=key.dtype)
    mla_cache_write(key[:, 0], key[:, 1], latent, slots)
    q, _ = rotary_cache_write(key, key, key, *([torch.ones(20, 16)] * 2), *caches, slots)
    return torch.cat(
        (
            caches[0].flatten(),
            latent.flatten(),
            q.flatten(),
            scales[0].flatten(),
            indexer.flatten(),
            of_blocks[0].flatten(),
        )
    )


SHAPES = "64x8x128,8192x8x128"

CHECKS = Checks(
    trial=trial,
    examples=(
        Example(
            "cache_write",
            {"key": (33, 4, 64)},
            _example(lambda key, keys, values, slots: cache_write(key, -key, keys, values, slots)),
            _example(_by_assignment),
            gradients=False,
        ),
        Example(
            "rotary_cache_write",
            {"q": (33, 4, 64), "k": (33, 2, 64), "v": (33, 2, 64)},
            _written(rotary_cache_write),
            _written(_turned_by_assignment),
            gradients=False,
        ),
    ),
    parity=PARITY,
    calls=_calls,
    exercise=lambda draw: [_exercised(draw)],
    benchmarks=(
        *(
            Benchmark(
                f"cache_write_{layout}",
                example="8192x8x128",
                extents=("tokens", "heads", "features"),
                shapes=SHAPES,
                heading=f"Cache write, layout {layout}",
                bytes=lambda problem: 8.0 * problem["tokens"] * problem["heads"] * problem["features"],
                call=lambda problem, device, layout=layout: _call(problem, device, layout),
                refuse=_refuse,
                chained=True,
                tables=(
                    Table(
                        f"Cache write, layout {layout}, 8 heads of 128",
                        "{N}x8x128",
                        TOKEN_SIZES,
                    ),
                ),
            )
            for layout in ("nhd", "paged")
        ),
        *(
            Benchmark(
                f"cache_write_{name}",
                example="8192x8x128",
                extents=("tokens", "heads", "features"),
                shapes=SHAPES,
                heading=f"Cache write, int8, one scale per {of} and head",
                bytes=lambda problem, scales=scales: (
                    problem["tokens"] * problem["heads"] * (6.0 * problem["features"] + scales)
                ),
                call=lambda problem, device, of=of: _scaled_call(problem, device, of),
                chained=True,
                tables=(
                    Table(
                        f"Cache write, int8, one scale per {of} and head, 8 heads of 128",
                        "{N}x8x128",
                        TOKEN_SIZES,
                    ),
                ),
            )
            for name, of, scales in (("scaled", "token", 8.0), ("shared_scale", "block", 1.0))
        ),
        Benchmark(
            "rotary_cache_write",
            example="H32K8N8192D128",
            letters="NHKD",
            shapes="H32K8N64D128,H32K8N8192D128",
            heading="Rotary embedding and cache write",
            bytes=lambda problem: 2.0 * problem["N"] * (2 * problem["H"] + 5 * problem["K"]) * problem["D"],
            call=_rotary_call,
            refuse=lambda extents: (
                f"D is {extents['D']}; rotary turns pairs, so it has to be even" if extents["D"] % 2 else None
            ),
            chained=True,
            tables=(
                Table(
                    "Rotary embedding and cache write, 32 and 8 heads of 128", "H32K8N{N}D128", TOKEN_SIZES
                ),
            ),
        ),
    ),
)
