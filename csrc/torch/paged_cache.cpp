// torch/paged_cache.cpp: caches of keys and values in the form the kernels read.
// SPDX-License-Identifier: MIT
#include "torch/paged_cache.h"

#include <bit>

namespace hipkittens::torch_binding {
namespace {

[[noreturn]] void fail_of_shape(const std::string& where) {
    fail(where + ": a cache has another shape than its layout");
}

template <class T>
void check_values(const std::string& where, const Tensor& slots, const CacheView& view) {
    const T* data = static_cast<const T*>(slots.data());
    const int64_t count = slots.sizes()[0], step = slots.strides()[0];
    for (int64_t i = 0; i < count; ++i)
        if (data[i * step] >= view.blocks * view.block_size)
            fail(where + ": slot " + std::to_string(data[i * step]) + " at [" + std::to_string(i) +
                 "]; the cache has " + std::to_string(view.blocks * view.block_size) + ", " +
                 std::to_string(view.blocks) + " blocks of " + std::to_string(view.block_size));
}

}  // namespace

CacheView view_of_cache(const std::string& where, const Tensor& cache, CacheLayout layout, bool values,
                        Dtype rows) {
    CacheView view{};
    view.code = cache.dtype_number() == aoti_torch_dtype_uint8()  ? CacheCode::fp8
                : cache.dtype_number() == aoti_torch_dtype_int8() ? CacheCode::int8
                                                                  : CacheCode::none;
    view.dtype = view.code == CacheCode::none ? rows : Dtype::uint8;
    if (view.code == CacheCode::none && cache.dtype(where + ": a cache") != rows)
        fail(where + ": a cache has another dtype than the rows");
    CacheTensor& to = view.tensor;
    to.data = cache.data();
    to.slot_shift = to.feature_shift = one_group;
    const auto size = cache.sizes(), stride = cache.strides();
    const bool grouped = layout == CacheLayout::paged_asm || (layout == CacheLayout::paged && !values);
    const size_t dimensions = layout == CacheLayout::latent ? 3 : grouped ? 5 : 4;
    if (size.size() != dimensions) fail_of_shape(where);
    const int64_t x = 16 / bytes_of(view.dtype);
    const uint32_t shift = static_cast<uint32_t>(std::countr_zero(static_cast<uint64_t>(x)));
    if (grouped && size[4] != x) fail_of_shape(where);
    view.blocks = size[0];
    to.block = stride[0];
    const auto heads = [&](size_t axis) { view.heads = size[axis], to.head = stride[axis]; };
    const auto slots = [&](size_t axis) { view.block_size = size[axis], to.slot = stride[axis]; };
    const auto features = [&](size_t axis) { view.features = size[axis], to.feature = stride[axis]; };
    view.heads = 1;
    switch (layout) {
        case CacheLayout::latent:
            slots(1), features(2);
            break;
        case CacheLayout::nhd:
            slots(1), heads(2), features(3);
            break;
        case CacheLayout::hnd:
            heads(1), slots(2), features(3);
            break;
        case CacheLayout::paged:
        case CacheLayout::paged_asm:
            heads(1);
            if (!values) {
                slots(3);
                view.features = size[2] * x;
                to.feature_group = stride[2];
                to.feature = stride[4];
                to.feature_shift = shift;
            } else if (grouped) {
                features(3);
                view.block_size = size[2] * x;
                to.slot_group = stride[2];
                to.slot = stride[4];
                to.slot_shift = shift;
            } else {
                features(2), slots(3);
            }
    }
    if (view.blocks < 1 || view.block_size < 1) fail(where + ": a cache has no slot");
    if (view.blocks > INT32_MAX / view.block_size)
        fail(where + ": a cache has " + std::to_string(view.blocks) + " blocks of " +
             std::to_string(view.block_size) + " slots; 2147483647 slots are allowed");
    return view;
}

std::array<CacheView, 2> views_of_caches(const std::string& where, const Tensor& key, const Tensor& value,
                                         const Tensor& key_cache, const Tensor& value_cache, int64_t layout) {
    if (layout < 0 || layout > static_cast<int64_t>(CacheLayout::hnd))
        fail(where + ": layout is " + std::to_string(layout) + "; 0 .. 3 are allowed");
    const Dtype dtype = key.dtype(where + ": key");
    if (key.dimensions() != 3 || value.dimensions() != 3 || key.sizes()[0] != value.sizes()[0] ||
        value.dtype(where + ": value") != dtype || dtype == Dtype::float32 ||
        !(key.device() == value.device()))
        fail(where +
             ": key and value need to be (tokens, heads, features) of bfloat16 or float16, of the same "
             "tokens, dtype and device");
    const auto number = static_cast<CacheLayout>(layout);
    const std::array<CacheView, 2> views = {view_of_cache(where, key_cache, number, false, dtype),
                                            view_of_cache(where, value_cache, number, true, dtype)};
    if (views[0].blocks != views[1].blocks || views[0].block_size != views[1].block_size ||
        views[0].code != views[1].code)
        fail(where + ": the caches differ in their blocks or their codes");
    for (size_t i = 0; i < views.size(); ++i) {
        const auto sizes = (i ? value : key).sizes();
        if (views[i].heads != sizes[1] || views[i].features != sizes[2])
            fail(where + ": " + (i ? "value" : "key") + " and its cache differ in heads or features");
    }
    return views;
}

CacheView features_from(CacheView view, int64_t first, int64_t count) {
    view.tensor.data =
        static_cast<char*>(view.tensor.data) + first * view.tensor.feature * bytes_of(view.dtype);
    view.features = count;
    return view;
}

CacheOutput output_to(const std::string& where, const CacheView& view, const Tensor* scale, Device device) {
    if (scale) {
        if (view.code == CacheCode::none) fail(where + ": a scale is for caches of codes");
        if (scale->element_count() != 1 || scale->dtype(where + ": a scale") != Dtype::float32 ||
            !(scale->device() == device))
            fail(where + ": a scale needs to be one float32 on the device of the rows");
    }
    const CacheTensor& to = view.tensor;
    const int64_t size = bytes_of(view.dtype);
    // A feature group holds 8 or 16 features, or all of them.
    bool wide = to.feature == 1 && reinterpret_cast<uintptr_t>(to.data) % 4 == 0;
    for (const int64_t stride : {to.block, to.head, to.slot_group, to.slot, to.feature_group})
        wide = wide && stride * size % 4 == 0;
    return {to, scale ? static_cast<const float*>(scale->data()) : nullptr, wide, 0};
}

CacheSlots slots_in(const std::string& where, const Tensor& slots, int64_t tokens, const CacheView& view) {
    const bool wide = slots.dtype_number() == aoti_torch_dtype_int64();
    if (!wide && slots.dtype_number() != aoti_torch_dtype_int32())
        fail(where + ": slots need to be int32 or int64");
    if (slots.dimensions() != 1 || slots.sizes()[0] != tokens)
        fail(where + ": slots need the shape (" + std::to_string(tokens) + ",)");
    if (slots.device().cpu) {
        if (wide)
            check_values<int64_t>(where, slots, view);
        else
            check_values<int32_t>(where, slots, view);
    }
    return {slots.data(),
            slots.strides()[0],
            wide ? 8 : 4,
            static_cast<uint32_t>(view.block_size),
            static_cast<uint32_t>(view.blocks * view.block_size),
            view.code};
}

void add_cache_regions(std::vector<runtime::Region>& regions, const Tensor& cache, const char* name,
                       const CacheView& view, const Tensor* scale, const char* scale_name) {
    regions.push_back({cache.data(), cache.extent_bytes(view.dtype), name, true});
    if (scale) regions.push_back({scale->data(), 4, scale_name, false});
}

void add_slot_region(std::vector<runtime::Region>& regions, const Tensor& slots,
                     const CacheSlots& described) {
    const uint64_t last = static_cast<uint64_t>(slots.sizes()[0] - 1) * described.stride;
    regions.push_back({slots.data(), (last + 1) * described.bytes, "slots", false});
}

}  // namespace hipkittens::torch_binding
