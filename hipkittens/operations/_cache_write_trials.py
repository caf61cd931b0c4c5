# SPDX-License-Identifier: MIT
"""Trials for every kernel that writes to caches."""

from __future__ import annotations

import torch

from ..cache import LAYOUTS, cache_write, indexer_cache_write, mla_cache_write
from ..quantization import dtype_of
from ._caches import caches_of, mixed_slots
from ._record import DTYPES, Kernel, Trial
from ._tensors import draw


def _scaled_trial(dtype):
    """Heads that fill no wave, groups of each size, and both kinds of scales."""

    def run():
        written, slots = [], mixed_slots(37, 48)
        for layout in LAYOUTS:
            for features in (48, 512) if layout in ("paged", "asm") else (44, 136, 512):
                key, value = (draw(37, 3, features, dtype=dtype).detach() for _ in range(2))
                codes = torch.int8 if features == 512 else torch.uint8
                caches = caches_of(layout, 3, 16, 3, features, codes)
                scales = [torch.zeros(3, 16, 3) for _ in range(2)]
                cache_write(
                    key, value, *caches, slots, layout=layout, key_scales=scales[0], value_scales=scales[1]
                )
                written += [*caches, *scales]
        for group, powers in ((32, True), (64, False), (128, True)):
            cache = torch.zeros(3, 16, 128 + 512 // group, dtype=torch.uint8)
            keys = draw(37, 128, dtype=dtype).detach()
            indexer_cache_write(keys, cache, slots, group=group, powers_of_two=powers)
            written.append(cache)
        return written

    return run


def _shared_trial(dtype):
    """Groups that continue, whose scale grows and that are new, of blocks and of parts of them: the first write to each cache finds
    quantized values in the position before its slots.
    """

    def run():
        written, generator = [], torch.Generator().manual_seed(0)
        for layout in LAYOUTS:
            for features, groups in (
                ((48, 3), (512, 1)) if layout in ("paged", "asm") else ((44, 3), (136, 6))
            ):
                codes = torch.int8 if groups == 3 else torch.uint8
                caches = caches_of(layout, 3, 16, 3, features, codes)
                for cache in caches:
                    cache.copy_(torch.randint(8, 72, cache.shape, generator=generator))
                scales = [torch.full((groups, 3), 0.001) for _ in range(2)]
                for first, count, factor in ((1, 19, 1.0), (20, 8, 4.0), (28, 11, 0.5)):
                    # Tokens of a group in several waves, between others that are not written.
                    slots = torch.full((13 * count,), -1)
                    slots[::13] = torch.arange(first, first + count)
                    key, value = (
                        draw(len(slots), 3, features, dtype=dtype).detach() * factor for _ in range(2)
                    )
                    cache_write(
                        key,
                        value,
                        *caches,
                        slots,
                        layout=layout,
                        key_scales=scales[0],
                        value_scales=scales[1],
                    )
                written += [*caches, *scales]
        return written

    return run


def trial(kernel: Kernel) -> Trial:
    """All layouts, in the same dtype and in float8, with features that fill no vector if a layout has them."""
    dtype = DTYPES[kernel.row["element"]]
    if kernel.kind == "scaled":
        return Trial(f"cache_write scaled 37 tokens {kernel.row['element']}", _scaled_trial(dtype))
    if kernel.kind == "shared_scale":
        return Trial(f"cache_write shared scales 39 tokens {kernel.row['element']}", _shared_trial(dtype))

    def run():
        written = []
        slots = mixed_slots(37, 48)
        for layout in LAYOUTS:
            for of_cache in (dtype, dtype_of("fp8", torch.device("cpu")), torch.int8):
                features = 48 if layout in ("paged", "asm") else 44
                key, value = (draw(37, 3, features, dtype=dtype).detach() for _ in range(2))
                caches = caches_of(layout, 3, 16, 3, features, of_cache)
                scale = torch.tensor([0.25]) if of_cache.itemsize == 1 else None
                cache_write(key, value, *caches, slots, layout=layout, k_scale=scale)
                written += caches
        latent = torch.zeros(3, 16, 44, dtype=dtype)
        mla_cache_write(draw(37, 40, dtype=dtype).detach(), draw(37, 4, dtype=dtype).detach(), latent, slots)
        written.append(latent)
        return [each.view(torch.uint8) if each.dtype.itemsize == 1 else each for each in written]

    return Trial(f"cache_write 37 tokens {kernel.row['element']}", run)
