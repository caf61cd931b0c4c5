// kernels/cache_slots.h: caches of keys, values and latents as kernels see them, whatever the order of their dimensions.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace hipkittens {

// Features of a head of a slot, a token's place. Blocks hold `block_size` slots; slots and features may lie in groups, of powers of
// two. Strides in elements; none that a layout has not is looked at where the group is as large as it gets.
struct CacheTensor {
    void* data;
    int64_t block, head;
    int64_t slot_group, slot;
    int64_t feature_group, feature;
    uint32_t slot_shift, feature_shift;
};
inline constexpr uint32_t one_group = 31;

// What a cache has of x: x, or round(x * (1 / scale)) as 8-bit floats of the target, as integers of -127 .. 127, or as e4m3fn on any
// target.
enum class CacheCode : uint32_t { none, fp8, int8, e4m3fn };

// One for each token. What is negative, or no slot of the cache, is not written.
struct CacheSlots {
    const void* data;
    int64_t stride;
    int32_t bytes;  // of a number: 4 or 8
    uint32_t block_size;
    uint32_t count;  // of all blocks
    CacheCode code;
};

// scale: null is 1. wide: 8 features from a multiple of 8 on are neighbours, and begin on 4 bytes.
struct CacheOutput {
    CacheTensor to;
    const float* scale;
    uint32_t wide;
    uint32_t padding;  // named, so that launches of equal arguments are described by equal bytes
};

}  // namespace hipkittens
