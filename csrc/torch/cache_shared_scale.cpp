// torch/cache_shared_scale.cpp: validates the tensors of a cache write with shared scales, plans it and launches it.
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

// Like cache_write_scaled, with one scale per group of slots: key_scales, value_scales (groups, heads),
// float32, read and written. The slots are divided equally among the groups.
constexpr const char* cache_write_shared_scale_schema =
    "cache_write_shared_scale(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor(c!) key_scales, Tensor(d!) value_scales, Tensor slots, int layout) -> ()";

// The lower bound AITER puts on the largest magnitude of a block.
constexpr float shared_floor = 1e-6f;

// Number of slots in each group.
int64_t group_size(const std::string& where, const CacheView& view, const Tensor& scales) {
    const int64_t slots = view.blocks * view.block_size;
    const int64_t groups = scales.dimensions() == 2 ? scales.sizes()[0] : 0;
    if (groups < 1 || slots % groups || scales.sizes()[1] != view.heads ||
        scales.dtype(where + ": scales") != Dtype::float32)
        fail(where + ": scales need to be float32, (groups, heads), of groups that share the slots equally");
    return slots / groups;
}

void cache_write_shared_scale(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 8 || result_count != 0)
        fail("cache_write_shared_scale is registered with another schema");
    const std::string where = "cache_write_shared_scale";
    Arguments given(stack, argument_count);
    Tensor rows[2] = {given.tensor(), given.tensor()};
    const Tensor caches[2] = {given.tensor(), given.tensor()}, scales[2] = {given.tensor(), given.tensor()};
    const Tensor slots = given.tensor();
    const auto views = views_of_caches(where, rows[0], rows[1], caches[0], caches[1], given.integer());
    if (views[0].code == CacheCode::none) fail(where + ": caches need to be uint8 or int8");
    const int64_t group = group_size(where, views[0], scales[0]);
    if (group_size(where, views[1], scales[1]) != group) fail(where + ": scales differ in their groups");
    const Dtype dtype = rows[0].dtype(where + ": key");
    cache::SharedArguments arguments{};
    const int64_t tokens = rows[0].sizes()[0];
    arguments.slots = slots_in(where, slots, tokens, views[0]);
    if (rows[0].element_count() == 0 || rows[1].element_count() == 0) return;
    arguments.group = divisor_of(static_cast<uint32_t>(group));
    arguments.tokens = static_cast<uint32_t>(tokens);
    arguments.floor = shared_floor;
    const Placement placement(rows[0].device());
    std::vector<runtime::Region> regions;
    const char* const names[2][3] = {{"key", "key_cache", "key_scales"},
                                     {"value", "value_cache", "value_scales"}};
    for (size_t i = 0; i < 2; ++i) {
        if (!(scales[i].device() == rows[0].device())) fail(where + ": scales are on another device");
        Tensor& from = rows[i];
        from = with_unit_stride(std::move(from), dtype);
        const auto strides = from.strides(), steps = scales[i].strides();
        const int64_t size = bytes_of(dtype);
        arguments.parts[i] = {.from = from.data(),
                              .token = strides[0],
                              .head = strides[1],
                              .to = output_to(where, views[i], nullptr, from.device()),
                              .scales = static_cast<float*>(scales[i].data()),
                              .scale_group = steps[0],
                              .scale_head = steps[1],
                              .heads = static_cast<uint32_t>(from.sizes()[1]),
                              .features = static_cast<uint32_t>(from.sizes()[2]),
                              .aligned = reinterpret_cast<uintptr_t>(from.data()) % 4 == 0 &&
                                         strides[0] * size % 4 == 0 && strides[1] * size % 4 == 0};
        regions.push_back({from.data(), from.extent_bytes(dtype), names[i][0], false});
        add_cache_regions(regions, caches[i], names[i][1], views[i], nullptr, "");
        regions.push_back({scales[i].data(), scales[i].extent_bytes(Dtype::float32), names[i][2], true});
    }
    add_slot_region(regions, slots, arguments.slots);
    placement.launch(cache::plan(placement.target(), element_type(dtype), arguments), regions);
}

const Registration registration{{
    {cache_write_shared_scale_schema, &cache_write_shared_scale},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
