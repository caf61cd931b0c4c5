// kernels/cache_slots.h: caches of keys, values and latents as kernels see them, for any order of dimensions.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace hipkittens {

// Features of a head of a slot, which is a token's place. Blocks hold `block_size` slots; slots and features may be in groups whose
// sizes are powers of two. Strides in elements; strides that a layout does not have are unused if the group has the maximum size.
struct CacheTensor {
    void* data;
    int64_t block, head;
    int64_t slot_group, slot;
    int64_t feature_group, feature;
    uint32_t slot_shift, feature_shift;
};
inline constexpr uint32_t one_group = 31;

// The contents of a cache for x: x itself, or round(x * (1 / scale)) as 8-bit floats of the target, as integers of -127 .. 127, or
// as e4m3fn on any target.
enum class CacheCode : uint32_t { none, fp8, int8, e4m3fn };

// One slot per token. Tokens whose slot is negative, or not a slot of the cache, are not written.
struct CacheSlots {
    const void* data;
    int64_t stride;
    int32_t bytes;  // of a number: 4 or 8
    uint32_t block_size;
    uint32_t count;  // of all blocks
    CacheCode code;
};

// scale: null is 1. wide: 8 features starting at a multiple of 8 are contiguous and 4-byte aligned.
struct CacheOutput {
    CacheTensor to;
    const float* scale;
    uint32_t wide;
    uint32_t padding;  // named, so that the argument bytes of equal launches are equal
};

}  // namespace hipkittens
