// torch/rotary_qkv.cpp: checks the tensors of a packed qkv, plans its split, norm, rotation and cache, and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "kernels/rotary/plan.h"
#include "torch/element_type.h"
#include "torch/paged_cache.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/rotary_tables.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// qkv: (batch, tokens, (num_heads + 2 num_kv_heads) features of a head). q_weight, k_weight: (features,). Returns q, k, v, each (batch,
// tokens, heads, features). Slots and caches are those of cache_write, slots (batch x tokens,).
constexpr const char* qkv_rotary_schema =
    "qkv_rotary(Tensor qkv, Tensor? q_weight, Tensor? k_weight, " ROTATION_SCHEMA
    ", int num_heads, int num_kv_heads, float eps) -> (Tensor, Tensor, Tensor)";
constexpr const char* qkv_rotary_cache_schema =
    "qkv_rotary_cache(Tensor qkv, Tensor? q_weight, Tensor? k_weight, Tensor(a!) key_cache, Tensor(b!) "
    "value_cache, Tensor slots, Tensor? k_scale, Tensor? v_scale, " ROTATION_SCHEMA
    ", int num_heads, int num_kv_heads, float eps, int layout) -> (Tensor, Tensor, Tensor)";
// qkv is looked at where a weight is. Returns the gradient of qkv, and parts (parts, features) of those of the weights, whose sums they
// are; none of an absent weight.
constexpr const char* qkv_rotary_backward_schema =
    "qkv_rotary_backward(Tensor dq, Tensor dk, Tensor dv, Tensor? qkv, Tensor? q_weight, Tensor? "
    "k_weight, " ROTATION_SCHEMA ", float eps) -> (Tensor, Tensor, Tensor)";

constexpr size_t parts = 3;
constexpr std::array<const char*, parts> part_names = {"q", "k", "v"};

struct Cache {
    Tensor keys, values, slots;
    std::optional<Tensor> k_scale, v_scale;
    CacheLayout layout;
};

const Tensor* given_or_null(const std::optional<Tensor>& tensor) { return tensor ? &*tensor : nullptr; }

rotary::HeadTensor heads_of(const Tensor& tensor) {  // (batch, tokens, heads, features)
    const auto strides = tensor.strides();
    return {tensor.data(), strides[0], strides[1], strides[2]};
}
// Of (batch, tokens, all heads' features), the heads from `first` on.
rotary::HeadTensor heads_within(const Tensor& packed, Dtype dtype, int64_t first, int64_t features) {
    const auto strides = packed.strides();
    return {static_cast<const char*>(packed.data()) + first * features * bytes_of(dtype), strides[0],
            strides[1], features};
}

// The weights' common type. Adds regions.
ElementType check_weights(const std::string& where, std::array<std::optional<Tensor>*, 2> weights,
                          int64_t features, Device device, std::vector<runtime::Region>& regions) {
    std::optional<Dtype> type;
    for (std::optional<Tensor>* weight : weights) {
        if (!*weight) continue;
        const Dtype dtype = (*weight)->dtype(where + ": a weight");
        if ((*weight)->dimensions() != 1 || (*weight)->sizes()[0] != features ||
            !((*weight)->device() == device) || (type && *type != dtype))
            fail(where + ": weights need the shape (" + std::to_string(features) +
                 ",), one dtype, and the device of qkv");
        *weight = with_unit_stride(std::move(**weight), dtype);
        regions.push_back({(*weight)->data(), (*weight)->extent_bytes(dtype), "weight", false});
        type = dtype;
    }
    return type ? element_type(*type) : ElementType::f32;
}

void split(StableIValue* stack, Arguments& given, bool writes_cache) {
    const std::string where = writes_cache ? "qkv_rotary_cache" : "qkv_rotary";
    Tensor qkv = given.tensor();
    std::optional<Tensor> q_weight = given.optional_tensor(), k_weight = given.optional_tensor();
    std::optional<Cache> cache;
    if (writes_cache) {
        Tensor keys = given.tensor(), values = given.tensor(), slots = given.tensor();
        std::optional<Tensor> k_scale = given.optional_tensor(), v_scale = given.optional_tensor();
        cache.emplace(std::move(keys), std::move(values), std::move(slots), std::move(k_scale),
                      std::move(v_scale), CacheLayout::nhd);
    }
    RotationTensors rotation = read_rotation(given);
    const int64_t num_heads = given.integer(), num_kv_heads = given.integer();
    const float epsilon = static_cast<float>(given.number());
    if (cache) {
        const int64_t layout = given.integer();
        if (layout < 0 || layout > static_cast<int64_t>(CacheLayout::hnd))
            fail(where + ": layout is " + std::to_string(layout) + "; 0 .. 3 are allowed");
        cache->layout = static_cast<CacheLayout>(layout);
    }

    const Dtype dtype = qkv.dtype(where + ": qkv");
    if (qkv.dimensions() != 3) fail(where + ": qkv needs three dimensions, batch, tokens and features");
    const int64_t all_heads = num_heads + 2 * num_kv_heads;
    if (num_heads < 0 || num_kv_heads < 0 || all_heads < 1 || qkv.sizes()[2] % all_heads)
        fail(where + ": qkv has " + std::to_string(qkv.sizes()[2]) + " features for " +
             std::to_string(all_heads) + " heads");
    const int64_t batch = qkv.sizes()[0], tokens = qkv.sizes()[1], features = qkv.sizes()[2] / all_heads;
    const std::array<int64_t, parts> heads = {num_heads, num_kv_heads, num_kv_heads};
    const Placement placement(qkv.device());
    std::vector<Tensor> out;
    for (const int64_t count : heads) {
        const std::array<int64_t, 4> sizes = {batch, tokens, count, features};
        out.push_back(placement.empty(sizes, dtype));
    }
    std::vector<runtime::Region> regions;
    rotary::QkvArguments arguments{};
    arguments.weight_type = check_weights(where, {&q_weight, &k_weight}, features, qkv.device(), regions);
    if (cache) {
        if (dtype == Dtype::float32) fail(where + ": a cache is written from bfloat16 or float16");
        const CacheView keys = view_of_cache(where, cache->keys, cache->layout, false, dtype);
        const CacheView values = view_of_cache(where, cache->values, cache->layout, true, dtype);
        for (const CacheView* view : {&keys, &values})
            if (view->heads != num_kv_heads || view->features != features || view->blocks != keys.blocks ||
                view->block_size != keys.block_size || view->codes != keys.codes)
                fail(where + ": the caches differ from each other, or from k and v in heads or features");
        arguments.slots = slots_in(where, cache->slots, batch * tokens, keys);
        const Tensor *k_scale = given_or_null(cache->k_scale), *v_scale = given_or_null(cache->v_scale);
        arguments.parts[1].cache = output_to(where, keys, k_scale, qkv.device());
        arguments.parts[2].cache = output_to(where, values, v_scale, qkv.device());
        arguments.parts[1].cached = arguments.parts[2].cached = true;
        add_cache_regions(regions, cache->keys, "key_cache", keys, k_scale, "k_scale");
        add_cache_regions(regions, cache->values, "value_cache", values, v_scale, "v_scale");
    }
    if (qkv.element_count() == 0) {
        check_rotation(where + ": ", rotation, tokens, features);
    } else {
        qkv = with_unit_stride(std::move(qkv), dtype);
        if (cache) add_slot_region(regions, cache->slots, arguments.slots);
        arguments.rotation =
            describe_rotation(where + ": ", rotation, qkv.device(), batch, tokens, features, regions);
        arguments.epsilon = epsilon;
        arguments.batch = static_cast<uint32_t>(batch);
        arguments.tokens = static_cast<uint32_t>(tokens);
        regions.push_back({qkv.data(), qkv.extent_bytes(dtype), "qkv", false});
        int64_t first = 0;
        for (size_t i = 0; i < parts; ++i) {
            rotary::HeadPart& part = arguments.parts[i];
            part.in = heads_within(qkv, dtype, first, features);
            part.out = heads_of(out[i]);
            part.heads = static_cast<uint32_t>(heads[i]);
            part.turned = i < 2;
            first += heads[i];
            if (out[i].element_count())
                regions.push_back({out[i].data(), out[i].extent_bytes(dtype), part_names[i], true});
        }
        if (q_weight) arguments.parts[0].weight = q_weight->data();
        if (k_weight) arguments.parts[1].weight = k_weight->data();
        placement.launch(rotary::plan_qkv(placement.target(), element_type(dtype), arguments), regions);
    }
    for (size_t i = 0; i < parts; ++i) stack[i] = to_result(std::move(out[i]));
}

void qkv_rotary(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 3 + rotation_arguments + 3 || result_count != parts)
        fail("qkv_rotary is registered with another schema");
    Arguments given(stack, argument_count);
    split(stack, given, false);
}

void qkv_rotary_cache(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 8 + rotation_arguments + 4 || result_count != parts)
        fail("qkv_rotary_cache is registered with another schema");
    Arguments given(stack, argument_count);
    split(stack, given, true);
}

void qkv_rotary_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 6 + rotation_arguments + 1 || result_count != parts)
        fail("qkv_rotary_backward is registered with another schema");
    const std::string where = "qkv_rotary_backward";
    Arguments given(stack, argument_count);
    std::vector<Tensor> grads;
    for (size_t i = 0; i < parts; ++i) grads.push_back(given.tensor());
    std::optional<Tensor> qkv = given.optional_tensor(), q_weight = given.optional_tensor(),
                          k_weight = given.optional_tensor();
    RotationTensors rotation = read_rotation(given);
    const float epsilon = static_cast<float>(given.number());

    const Dtype dtype = grads[0].dtype(where + ": dq");
    const Device device = grads[0].device();
    std::array<int64_t, parts> heads{};
    int64_t all_heads = 0, most_heads = 0;
    for (size_t i = 0; i < parts; ++i) {
        if (grads[i].dimensions() != 4 || grads[i].dtype(where + ": a gradient") != dtype ||
            !(grads[i].device() == device))
            fail(where + ": gradients need four dimensions, one dtype and one device");
        for (const size_t axis : {0, 1, 3})
            if (grads[i].sizes()[axis] != grads[0].sizes()[axis])
                fail(where + ": gradients differ in more than heads");
        heads[i] = grads[i].sizes()[2];
        all_heads += heads[i];
        most_heads = std::max(most_heads, heads[i]);
    }
    const int64_t batch = grads[0].sizes()[0], tokens = grads[0].sizes()[1], features = grads[0].sizes()[3];
    const std::array<int64_t, 3> sizes = {batch, tokens, all_heads * features};
    if ((q_weight || k_weight) && !qkv) fail(where + ": the gradient of a norm needs qkv");
    if (qkv && (qkv->dtype(where + ": qkv") != dtype || !(qkv->device() == device) ||
                !std::equal(sizes.begin(), sizes.end(), qkv->sizes().begin(), qkv->sizes().end())))
        fail(where + ": qkv is not what the gradients are of");
    std::vector<runtime::Region> regions;
    rotary::QkvBackwardArguments arguments{};
    arguments.weight_type = check_weights(where, {&q_weight, &k_weight}, features, device, regions);
    const Placement placement(device);
    Tensor dqkv = placement.empty(sizes, dtype);
    const bool empty = dqkv.element_count() == 0;
    arguments.workgroups = rotary::qkv_backward_workgroups(batch * tokens, most_heads);
    std::vector<Tensor> sums;
    for (const std::optional<Tensor>* weight : {&q_weight, &k_weight}) {
        const std::array<int64_t, 2> rows = {
            *weight && !empty ? int64_t{arguments.workgroups} * rotary::waves : 0, features};
        sums.push_back(placement.empty(rows, Dtype::float32));
    }
    if (empty) {
        check_rotation(where + ": ", rotation, tokens, features);
    } else {
        arguments.rotation =
            describe_rotation(where + ": ", rotation, device, batch, tokens, features, regions);
        arguments.epsilon = epsilon;
        arguments.batch = static_cast<uint32_t>(batch);
        arguments.tokens = static_cast<uint32_t>(tokens);
        if (qkv) {
            qkv = with_unit_stride(std::move(*qkv), dtype);
            regions.push_back({qkv->data(), qkv->extent_bytes(dtype), "qkv", false});
        }
        regions.push_back({dqkv.data(), dqkv.extent_bytes(dtype), "dqkv", true});
        int64_t first = 0;
        for (size_t i = 0; i < parts; ++i) {
            rotary::HeadGradient& part = arguments.parts[i];
            grads[i] = with_unit_stride(std::move(grads[i]), dtype);
            if (grads[i].element_count())
                regions.push_back({grads[i].data(), grads[i].extent_bytes(dtype), part_names[i], false});
            part.grad = heads_of(grads[i]);
            part.out = heads_within(dqkv, dtype, first, features);
            if (qkv) part.x = heads_within(*qkv, dtype, first, features);
            part.heads = static_cast<uint32_t>(heads[i]);
            part.turned = i < 2;
            const std::optional<Tensor>* weight = i == 0 ? &q_weight : i == 1 ? &k_weight : nullptr;
            if (weight && *weight) {
                part.weight = (*weight)->data();
                part.weight_sums = static_cast<float*>(sums[i].data());
                regions.push_back({sums[i].data(), sums[i].extent_bytes(Dtype::float32), "sums", true});
            }
            first += heads[i];
        }
        placement.launch(rotary::plan_qkv_backward(placement.target(), element_type(dtype), arguments),
                         regions);
    }
    stack[0] = to_result(std::move(dqkv));
    stack[1] = to_result(std::move(sums[0]));
    stack[2] = to_result(std::move(sums[1]));
}

const Registration registration{{
    {qkv_rotary_schema, &qkv_rotary},
    {qkv_rotary_cache_schema, &qkv_rotary_cache},
    {qkv_rotary_backward_schema, &qkv_rotary_backward},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
