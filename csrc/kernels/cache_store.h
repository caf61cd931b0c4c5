// kernels/cache_store.h: up to eight features into a slot of a cache.
// SPDX-License-Identifier: MIT
#pragma once
#include "../tiles/float8.h"
#include "../tiles/row_chunk.h"
#include "cache_slots.h"

namespace hipkittens {

// The slot of a token, or -1.
KITTENS_DEVICE int32_t slot_of(const CacheSlots& slots, uint32_t token) {
    const int64_t at = token * slots.stride;
    const int64_t slot = slots.bytes == 8 ? static_cast<const int64_t*>(slots.data)[at]
                                          : static_cast<const int32_t*>(slots.data)[at];
    return slot < 0 || slot >= slots.count ? -1 : static_cast<int32_t>(slot);
}

// Features first + i step of a head, `count` of them or eight, as they are.
template <class Element>
KITTENS_DEVICE void store_elements_in_cache(const CacheSlots& slots, const CacheOutput& cache, uint32_t slot,
                                            uint32_t head, uint32_t first, uint32_t step, uint32_t count,
                                            kittens::vec<Element, 8> values) {
    const CacheTensor& to = cache.to;
    const uint32_t block = slot / slots.block_size, place = slot - block * slots.block_size;
    const auto grouped = [](uint32_t at, uint32_t shift, int64_t group, int64_t step) {
        return (at >> shift) * group + (at & ((1u << shift) - 1)) * step;
    };
    const int64_t row =
        block * to.block + head * to.head + grouped(place, to.slot_shift, to.slot_group, to.slot);
    auto* data = (__attribute__((address_space(1))) Element*)to.data + row;
    if (cache.wide && count >= 8 && step == 1 && first % 8 == 0) {
        typedef kittens::vec<Element, 8> aligned __attribute__((aligned(4)));
        data += grouped(first, to.feature_shift, to.feature_group, to.feature);
        *(__attribute__((address_space(1))) aligned*)data = values;
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i)
        if (i < count)
            data[grouped(first + i * step, to.feature_shift, to.feature_group, to.feature)] = values[i];
}

// 8-bit floats of the target, clamped to the largest; NaN stays.
KITTENS_DEVICE kittens::vec<uint8_t, 8> codes_of(kittens::eight scaled) {
#pragma unroll
    for (int i = 0; i < 8; ++i) scaled[i] = kittens::clamped(scaled[i], kittens::largest_fp8);
    const kittens::vec<uint32_t, 2> codes = {kittens::to_fp8(scaled.lo), kittens::to_fp8(scaled.hi)};
    return __builtin_bit_cast(kittens::vec<uint8_t, 8>, codes);
}

// The same of the cache's dtype: codes of what `scale` divides, or T.
template <class T>
KITTENS_DEVICE void store_in_cache(const CacheSlots& slots, const CacheOutput& cache, uint32_t slot,
                                   uint32_t head, uint32_t first, uint32_t step, uint32_t count,
                                   kittens::raw_eight<T> values) {
    if (!slots.codes)
        store_elements_in_cache<T>(slots, cache, slot, head, first, step, count, values);
    else
        store_elements_in_cache<uint8_t>(
            slots, cache, slot, head, first, step, count,
            codes_of(kittens::widened(values) * (cache.scale ? 1 / *cache.scale : 1.0f)));
}

}  // namespace hipkittens
