// torch/cache.cpp: validates the tensors of a cache write, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
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

// key, value: (tokens, heads, features). layout: CacheLayout. A uint8 cache holds 8-bit floats, an int8 cache
// integers. slots: int32 or int64, (tokens,).
constexpr const char* cache_write_schema =
    "cache_write(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slots, "
    "Tensor? k_scale, Tensor? v_scale, int layout) -> ()";
// kv_c: (tokens, latent), k_pe: (tokens, rotary), kv_cache: (blocks, block size, latent + rotary).
constexpr const char* mla_cache_write_schema =
    "mla_cache_write(Tensor kv_c, Tensor k_pe, Tensor(a!) kv_cache, Tensor slots, Tensor? scale) -> ()";

const Tensor* given_or_null(const std::optional<Tensor>& tensor) { return tensor ? &*tensor : nullptr; }

// Rows of shape (tokens, heads, features) or (tokens, features).
cache::Copy copy_of(const Tensor& rows, Dtype dtype, const CacheOutput& to) {
    cache::Copy copy{};
    const bool heads = rows.dimensions() == 3;
    copy.from = rows.data();
    copy.token = rows.strides()[0];
    copy.head = heads ? rows.strides()[1] : 0;
    copy.heads = heads ? static_cast<uint32_t>(rows.sizes()[1]) : 1;
    copy.features = static_cast<uint32_t>(rows.sizes().back());
    const int64_t size = bytes_of(dtype);
    copy.aligned = reinterpret_cast<uintptr_t>(copy.from) % 4 == 0 && copy.token * size % 4 == 0 &&
                   copy.head * size % 4 == 0;
    copy.to = to;
    return copy;
}

// One of the two tensors that are written.
struct Part {
    Tensor rows;
    const char* name;
    CacheView view;
    const Tensor* scale;
};

void write(const std::string& where, Part first, Part second, const Tensor& slots,
           std::vector<runtime::Region> regions) {
    const Dtype dtype = first.rows.dtype(where + ": " + first.name);
    cache::CopyArguments arguments{};
    const int64_t tokens = first.rows.sizes()[0];
    arguments.slots = slots_in(where, slots, tokens, first.view);
    arguments.tokens = static_cast<uint32_t>(tokens);
    if (first.rows.element_count() == 0) return;
    const Placement placement(first.rows.device());
    size_t position = 0;
    for (Part* part : {&first, &second}) {
        if (part->rows.dtype(where + ": " + part->name) != dtype || dtype == Dtype::float32)
            fail(where + ": rows need to be bfloat16 or float16, all of them");
        if (part->rows.sizes()[0] != tokens || !(part->rows.device() == first.rows.device()) ||
            part->view.code != first.view.code)
            fail(where + ": tokens, devices, or caches differ");
        const bool heads = part->rows.dimensions() == 3;
        if (part->rows.sizes().back() != part->view.features || part->view.features < 1 ||
            (heads ? part->rows.sizes()[1] : 1) != part->view.heads)
            fail(where + ": " + part->name + " and its cache differ in heads or features");
        part->rows = with_unit_stride(std::move(part->rows), dtype);
        arguments.copies[position++] =
            copy_of(part->rows, dtype, output_to(where, part->view, part->scale, first.rows.device()));
        regions.push_back({part->rows.data(), part->rows.extent_bytes(dtype), part->name, false});
    }
    add_slot_region(regions, slots, arguments.slots);
    placement.launch(cache::plan(placement.target(), element_type(dtype), arguments), regions);
}

void cache_write(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 8 || result_count != 0) fail("cache_write is registered with another schema");
    const std::string where = "cache_write";
    Arguments given(stack, argument_count);
    Tensor key = given.tensor(), value = given.tensor();
    const Tensor key_cache = given.tensor(), value_cache = given.tensor(), slots = given.tensor();
    const std::optional<Tensor> k_scale = given.optional_tensor(), v_scale = given.optional_tensor();
    const auto [keys, values] = views_of_caches(where, key, value, key_cache, value_cache, given.integer());
    std::vector<runtime::Region> regions;
    add_cache_regions(regions, key_cache, "key_cache", keys, given_or_null(k_scale), "k_scale");
    add_cache_regions(regions, value_cache, "value_cache", values, given_or_null(v_scale), "v_scale");
    write(where, {std::move(key), "key", keys, given_or_null(k_scale)},
          {std::move(value), "value", values, given_or_null(v_scale)}, slots, std::move(regions));
}

void mla_cache_write(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 5 || result_count != 0) fail("mla_cache_write is registered with another schema");
    const std::string where = "mla_cache_write";
    Arguments given(stack, argument_count);
    Tensor kv_c = given.tensor(), k_pe = given.tensor();
    const Tensor kv_cache = given.tensor(), slots = given.tensor();
    const std::optional<Tensor> given_scale = given.optional_tensor();
    const Tensor* scale = given_or_null(given_scale);
    if (kv_c.dimensions() != 2 || k_pe.dimensions() != 2)
        fail(where + ": kv_c and k_pe need two dimensions, tokens and features");
    const CacheView cache =
        view_of_cache(where, kv_cache, CacheLayout::latent, false, kv_c.dtype(where + ": kv_c"));
    const int64_t latent = kv_c.sizes()[1], rotary = k_pe.sizes()[1];
    if (latent + rotary != cache.features) fail(where + ": kv_c and k_pe and the cache differ in features");
    std::vector<runtime::Region> regions;
    add_cache_regions(regions, kv_cache, "kv_cache", cache, scale, "scale");
    Part first{std::move(kv_c), "kv_c", features_from(cache, 0, latent), scale};
    Part second{std::move(k_pe), "k_pe", features_from(cache, latent, rotary), scale};
    write(where, std::move(first), std::move(second), slots, std::move(regions));
}

const Registration registration{{
    {cache_write_schema, &cache_write},
    {mla_cache_write_schema, &mla_cache_write},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
