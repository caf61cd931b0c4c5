// torch/paged_cache.h: caches of keys and values as tensors, and the slots in them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cache_slots.h"
#include "runtime/launch.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

// The order of dimensions, with x elements in 16 bytes:
// paged  keys (blocks, heads, features / x, block size, x), values (blocks, heads, features, block size)
// asm    keys as paged, values (blocks, heads, block size / x, features, x)
// nhd    (blocks, block size, heads, features)
// hnd    (blocks, heads, block size, features)
// latent (blocks, block size, features), one head
enum class CacheLayout : int64_t { paged, paged_asm, nhd, hnd, latent };

// A cache of one of the operators whose name is `where`. uint8 stands for 8-bit floats of the target, anything else has to be
// of the dtype of the rows.
struct CacheView {
    CacheTensor tensor;
    int64_t blocks, block_size, heads, features;
    Dtype dtype;
    bool codes;
};
CacheView view_of_cache(const std::string& where, const Tensor& cache, CacheLayout layout, bool values,
                        Dtype rows);

// Part of a latent: the features from `first` on.
CacheView features_from(CacheView view, int64_t first, int64_t count);

// Checks the scale, null or of a cache of 8-bit floats, on the device that the rows are on.
CacheOutput output_to(const std::string& where, const CacheView& view, const Tensor* scale, Device device);

// Checks the slots against the cache, also their values where they are in the memory of the CPU.
CacheSlots slots_in(const std::string& where, const Tensor& slots, int64_t tokens, const CacheView& view);

// What the launch may touch of them.
void add_cache_regions(std::vector<runtime::Region>& regions, const Tensor& cache, const char* name,
                       const CacheView& view, const Tensor* scale, const char* scale_name);
void add_slot_region(std::vector<runtime::Region>& regions, const Tensor& slots, const CacheSlots& described);

}  // namespace hipkittens::torch_binding
