// kernels/cache_store.h: stores up to eight features to a slot of a cache, and loads them.
// SPDX-License-Identifier: MIT
#pragma once
#include "../tiles/float8.h"
#include "../tiles/row_chunk.h"
#include "cache_slots.h"
#include "quantization/codes.h"

namespace hipkittens {

// The slot of a token, or -1.
KITTENS_DEVICE int32_t slot_of(const CacheSlots& slots, uint32_t token) {
    const int64_t at = token * slots.stride;
    const int64_t slot = slots.bytes == 8 ? static_cast<const int64_t*>(slots.data)[at]
                                          : static_cast<const int32_t*>(slots.data)[at];
    return slot < 0 || slot >= slots.count ? -1 : static_cast<int32_t>(slot);
}

// Features of a head of a slot: first + i step, `count` of them or all eight.
template <class Element>
class CachedFeatures {
    typedef kittens::vec<Element, 8> aligned __attribute__((aligned(4)));
    using Global = __attribute__((address_space(1))) Element*;
    const CacheTensor& cache_;
    Global row_;
    uint32_t first_, step_, count_;
    bool whole_;  // contiguous, and all eight

    KITTENS_DEVICE static int64_t grouped(uint32_t at, uint32_t shift, int64_t group, int64_t step) {
        return (at >> shift) * group + (at & ((1u << shift) - 1)) * step;
    }
    KITTENS_DEVICE Global at(uint32_t i) const {
        return row_ + grouped(first_ + i * step_, cache_.feature_shift, cache_.feature_group, cache_.feature);
    }

  public:
    KITTENS_DEVICE CachedFeatures(const CacheSlots& slots, const CacheOutput& cache, uint32_t slot,
                                  uint32_t head, uint32_t first, uint32_t step, uint32_t count)
        : cache_(cache.to),
          first_(first),
          step_(step),
          count_(count),
          whole_(cache.wide && count >= 8 && step == 1 && first % 8 == 0) {
        const uint32_t block = slot / slots.block_size, place = slot - block * slots.block_size;
        row_ = (Global)cache_.data + (block * cache_.block + head * cache_.head +
                                      grouped(place, cache_.slot_shift, cache_.slot_group, cache_.slot));
    }
    KITTENS_DEVICE void store(kittens::vec<Element, 8> values) const {
        if (whole_) {
            *(__attribute__((address_space(1))) aligned*)at(0) = values;
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i)
            if (i < count_) *at(i) = values[i];
    }
    KITTENS_DEVICE kittens::vec<Element, 8> load() const {
        if (whole_) return *(__attribute__((address_space(1))) const aligned*)at(0);
        kittens::vec<Element, 8> values = Element();
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i)
            if (i < count_) values[i] = *at(i);
        return values;
    }
};

KITTENS_DEVICE float largest_of(CacheCode code) {
    return code == CacheCode::int8 ? 127.0f : kittens::largest_fp8;
}

// Clamped to the largest value. NaN stays NaN, or becomes 0 for integers.
KITTENS_DEVICE kittens::vec<uint8_t, 8> codes_of(kittens::eight scaled, CacheCode code) {
    kittens::vec<uint32_t, 2> codes = 0u;
    if (code == CacheCode::int8) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            codes[i / 4] |= quantize::int8(scaled[i] == scaled[i] ? scaled[i] : 0.0f, false) << 8 * (i % 4);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) scaled[i] = kittens::clamped(scaled[i], kittens::largest_fp8);
        codes = {kittens::to_fp8(scaled.lo), kittens::to_fp8(scaled.hi)};
    }
    return __builtin_bit_cast(kittens::vec<uint8_t, 8>, codes);
}

KITTENS_DEVICE kittens::eight values_of(kittens::vec<uint8_t, 8> codes, CacheCode code) {
    if (code == CacheCode::int8)
        return __builtin_convertvector(__builtin_bit_cast(kittens::vec<int8_t, 8>, codes), kittens::eight);
    const auto words = __builtin_bit_cast(kittens::vec<uint32_t, 2>, codes);
    kittens::eight values;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const auto low = kittens::unpack_fp8<false>(words[i]), high = kittens::unpack_fp8<true>(words[i]);
        values[4 * i] = low[0], values[4 * i + 1] = low[1];
        values[4 * i + 2] = high[0], values[4 * i + 3] = high[1];
    }
    return values;
}

// Stores to a cache of T, or as quantized values after division by `scale`.
template <class T>
KITTENS_DEVICE void store_in_cache(const CacheSlots& slots, const CacheOutput& cache, uint32_t slot,
                                   uint32_t head, uint32_t first, uint32_t step, uint32_t count,
                                   kittens::raw_eight<T> values) {
    if (slots.code == CacheCode::none)
        CachedFeatures<T>(slots, cache, slot, head, first, step, count).store(values);
    else
        CachedFeatures<uint8_t>(slots, cache, slot, head, first, step, count)
            .store(codes_of(kittens::widened(values) * (cache.scale ? 1 / *cache.scale : 1.0f), slots.code));
}

}  // namespace hipkittens
