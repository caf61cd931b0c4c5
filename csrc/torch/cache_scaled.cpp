// torch/cache_scaled.cpp: validates the tensors of a cache write of quantized values and their scales, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include "kernels/cache/plan.h"
#include "torch/element_type.h"
#include "torch/paged_cache.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// Like cache_write for uint8 or int8 caches, with one scale per head and slot: key_scales, value_scales
// (blocks, block size, heads), float32. With e4m3fn, uint8 means e4m3fn on every target.
constexpr const char* cache_write_scaled_schema =
    "cache_write_scaled(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor(c!) "
    "key_scales, Tensor(d!) value_scales, Tensor slots, int layout, bool e4m3fn=False) -> ()";
// k: (tokens, features). kv_cache: uint8, (blocks, block size, features + 4 for each group), whose blocks are
// contiguous: the quantized values of a block, then its scales.
constexpr const char* indexer_cache_write_schema =
    "indexer_cache_write(Tensor k, Tensor(a!) kv_cache, Tensor slots, int group, bool powers_of_two) -> ()";

// The lower bound AITER and DeepGEMM put on the largest magnitude of an indexer's key.
constexpr float indexer_floor = 1e-4f;

struct Call {
    std::string where;
    cache::ScaledArguments arguments{};
    std::vector<runtime::Region> regions{};
};

// rows: (tokens, heads, features) or (tokens, features).
cache::ScaledPart& add_rows(Call& call, size_t number, Tensor& rows, const char* name, Dtype dtype) {
    if (rows.dtype(call.where + ": " + name) != dtype || dtype == Dtype::float32)
        fail(call.where + ": rows need to be bfloat16 or float16, all of them");
    rows = with_unit_stride(std::move(rows), dtype);
    cache::ScaledPart& part = call.arguments.parts[number];
    const bool heads = rows.dimensions() == 3;
    part.from = rows.data();
    part.token = rows.strides()[0];
    part.head = heads ? rows.strides()[1] : 0;
    part.heads = heads ? static_cast<uint32_t>(rows.sizes()[1]) : 1;
    part.features = static_cast<uint32_t>(rows.sizes().back());
    const int64_t size = bytes_of(dtype);
    part.aligned = reinterpret_cast<uintptr_t>(part.from) % 4 == 0 && part.token * size % 4 == 0 &&
                   part.head * size % 4 == 0;
    part.group_shift = 6;
    call.regions.push_back({rows.data(), rows.extent_bytes(dtype), name, false});
    return part;
}

void launch(Call& call, const Tensor& rows, Dtype dtype, const Tensor& slots) {
    const Placement placement(rows.device());
    call.arguments.tokens = static_cast<uint32_t>(rows.sizes()[0]);
    add_slot_region(call.regions, slots, call.arguments.slots);
    placement.launch(cache::plan(placement.target(), element_type(dtype), call.arguments), call.regions);
}

void cache_write_scaled(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 9 || result_count != 0)
        fail("cache_write_scaled is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor key = given.tensor(), value = given.tensor();
    const Tensor key_cache = given.tensor(), value_cache = given.tensor();
    const Tensor key_scales = given.tensor(), value_scales = given.tensor(), slots = given.tensor();
    Call call{"cache_write_scaled"};
    const std::string& where = call.where;
    const auto views = views_of_caches(where, key, value, key_cache, value_cache, given.integer());
    const Dtype dtype = key.dtype(where + ": key");
    call.arguments.slots = slots_in(where, slots, key.sizes()[0], views[0]);
    if (given.boolean()) {
        if (views[0].code != CacheCode::fp8) fail(where + ": caches of e4m3fn need to be uint8");
        call.arguments.slots.code = CacheCode::e4m3fn;
    }
    call.arguments.zero_scale = 1;
    if (key.element_count() == 0) return;
    for (size_t i = 0; i < 2; ++i) {
        const CacheView& view = views[i];
        const Tensor& scales = i ? value_scales : key_scales;
        cache::ScaledPart& part = add_rows(call, i, i ? value : key, i ? "value" : "key", dtype);
        if (view.code == CacheCode::none) fail(where + ": caches need to be uint8 or int8");
        const auto sizes = scales.sizes(), strides = scales.strides();
        if (scales.dtype(where + ": scales") != Dtype::float32 || sizes.size() != 3 ||
            sizes[0] != view.blocks || sizes[1] != view.block_size || sizes[2] != view.heads ||
            !(scales.device() == key.device()))
            fail(where + ": scales need to be float32, (blocks, block size, heads), on the device of key");
        part.to = output_to(where, view, nullptr, key.device());
        part.scales = static_cast<float*>(scales.data());
        part.scale_block = strides[0], part.scale_slot = strides[1], part.scale_head = strides[2];
        add_cache_regions(call.regions, i ? value_cache : key_cache, i ? "value_cache" : "key_cache", view,
                          nullptr, "");
        call.regions.push_back(
            {scales.data(), scales.extent_bytes(Dtype::float32), i ? "value_scales" : "key_scales", true});
    }
    launch(call, key, dtype, slots);
}

void indexer_cache_write(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 5 || result_count != 0)
        fail("indexer_cache_write is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor k = given.tensor();
    const Tensor kv_cache = given.tensor(), slots = given.tensor();
    const int64_t group = given.integer();
    const bool powers_of_two = given.boolean();
    Call call{"indexer_cache_write"};
    const std::string& where = call.where;
    if (k.dimensions() != 2) fail(where + ": k needs two dimensions, tokens and features");
    const int64_t features = k.sizes()[1];
    if ((group != 32 && group != 64 && group != 128) || features < 1 || features % group)
        fail(where + ": groups have 32, 64 or 128 features, and " + std::to_string(features) +
             " have to be a multiple of that");
    const Dtype dtype = k.dtype(where + ": k");
    CacheView view = view_of_cache(where, kv_cache, CacheLayout::latent, false, dtype);
    const int64_t groups = features / group, row = features + 4 * groups;
    const auto strides = kv_cache.strides();
    if (view.code != CacheCode::fp8 || view.features != row || strides[2] != 1 ||
        (view.block_size > 1 && strides[1] != row) || strides[0] % 4 ||
        reinterpret_cast<uintptr_t>(kv_cache.data()) % 4)
        fail(where + ": kv_cache needs to be uint8, (blocks, block size, " + std::to_string(row) +
             "), with contiguous blocks on 4 bytes");
    add_cache_regions(call.regions, kv_cache, "kv_cache", view, nullptr, "");
    call.arguments.slots = slots_in(where, slots, k.sizes()[0], view);
    call.arguments.powers_of_two = powers_of_two;
    call.arguments.floor = indexer_floor;
    if (k.element_count() == 0) return;
    cache::ScaledPart& part = add_rows(call, 0, k, "k", dtype);
    view.features = features;
    view.tensor.slot = features;
    part.to = output_to(where, view, nullptr, k.device());
    part.group_shift = group == 32 ? 2 : group == 64 ? 3 : 4;
    part.scales = reinterpret_cast<float*>(static_cast<char*>(kv_cache.data()) + view.block_size * features);
    part.scale_block = strides[0] / 4, part.scale_slot = groups, part.scale_group = 1;
    launch(call, k, dtype, slots);
}

const Registration registration{{
    {cache_write_scaled_schema, &cache_write_scaled},
    {indexer_cache_write_schema, &indexer_cache_write},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
