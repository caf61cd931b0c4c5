// torch/paged_cache.h: caches of keys and values as tensors, and the slots in them.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cache_slots.h"
#include "runtime/launch.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

// The order of dimensions; x elements make up 16 bytes:
//   paged  keys (blocks, heads, features / x, block size, x), values (blocks, heads, features, block size)
//   asm    keys as paged, values (blocks, heads, block size / x, features, x)
//   nhd    (blocks, block size, heads, features)
//   hnd    (blocks, heads, block size, features)
//   latent (blocks, block size, features), one head
enum class CacheLayout : int64_t { paged, paged_asm, nhd, hnd, latent };

// A cache passed to the operator named `where`. uint8 means the target's 8-bit floats, int8 means itself; any
// other dtype must equal that of the rows.
struct CacheView {
    CacheTensor tensor;
    int64_t blocks, block_size, heads, features;
    Dtype dtype;  // uint8 for all quantized values
    CacheCode code;
};
CacheView view_of_cache(const std::string& where, const Tensor& cache, CacheLayout layout, bool values,
                        Dtype rows);

// The caches, keys first, for bfloat16 or float16 rows (tokens, heads, features). They have the same tokens,
// blocks and quantized format. layout: up to hnd.
std::array<CacheView, 2> views_of_caches(const std::string& where, const Tensor& key, const Tensor& value,
                                         const Tensor& key_cache, const Tensor& value_cache, int64_t layout);

// Part of a latent cache: `count` features starting at `first`.
CacheView features_from(CacheView view, int64_t first, int64_t count);

// Checks the scale, which is null unless the cache is quantized; it must be on the rows' device.
CacheOutput output_to(const std::string& where, const CacheView& view, const Tensor* scale, Device device);

// Checks the slots against the cache, including their values if they are in CPU memory.
CacheSlots slots_in(const std::string& where, const Tensor& slots, int64_t tokens, const CacheView& view);

// Adds the memory of the cache that the launch may touch.
void add_cache_regions(std::vector<runtime::Region>& regions, const Tensor& cache, const char* name,
                       const CacheView& view, const Tensor* scale, const char* scale_name);
void add_slot_region(std::vector<runtime::Region>& regions, const Tensor& slots, const CacheSlots& described);

}  // namespace hipkittens::torch_binding
