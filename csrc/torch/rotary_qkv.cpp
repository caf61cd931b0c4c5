// torch/rotary_qkv.cpp: validates the tensors of a packed qkv, plans its split, norm, rotation and cache write, and launches it.
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

// qkv: (batch, tokens, (num_heads + 2 num_kv_heads) features of a head). q_weight, k_weight: (features,).
// Returns q, k, v, each (batch, tokens, heads, features).
constexpr const char* qkv_rotary_schema =
    "qkv_rotary(Tensor qkv, Tensor? q_weight, Tensor? k_weight, " ROTATION_SCHEMA
    ", int num_heads, int num_kv_heads, float eps) -> (Tensor, Tensor, Tensor)";
// The same for separate q, k and v, each (batch, tokens, heads, features). Slots and caches as in
// cache_write, slots (batch x tokens,).
constexpr const char* qkv_rotary_cache_schema =
    "qkv_rotary_cache(Tensor q, Tensor k, Tensor v, Tensor? q_weight, Tensor? k_weight, Tensor(a!) "
    "key_cache, "
    "Tensor(b!) value_cache, Tensor slots, Tensor? k_scale, Tensor? v_scale, " ROTATION_SCHEMA
    ", float eps, int layout) -> (Tensor, Tensor, Tensor)";
// qkv is read where there is a weight. Returns the gradient of qkv, and (parts, features) partial gradients
// of the weights to be summed over parts; none for an absent weight.
constexpr const char* qkv_rotary_backward_schema =
    "qkv_rotary_backward(Tensor dq, Tensor dk, Tensor dv, Tensor? qkv, Tensor? q_weight, Tensor? "
    "k_weight, " ROTATION_SCHEMA ", float eps) -> (Tensor, Tensor, Tensor)";

constexpr size_t parts = 3;
constexpr std::array<const char*, parts> part_names = {"q", "k", "v"};

const Tensor* given_or_null(const std::optional<Tensor>& tensor) { return tensor ? &*tensor : nullptr; }

rotary::HeadTensor heads_of(const Tensor& tensor) {  // (batch, tokens, heads, features)
    const auto strides = tensor.strides();
    return {tensor.data(), strides[0], strides[1], strides[2]};
}
// The heads from `first` on of a (batch, tokens, all heads' features) tensor.
rotary::HeadTensor heads_within(const Tensor& packed, Dtype dtype, int64_t first, int64_t features) {
    const auto strides = packed.strides();
    return {static_cast<const char*>(packed.data()) + first * features * bytes_of(dtype), strides[0],
            strides[1], features};
}

// The common type of the weights. Adds regions.
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

// The heads of q, k and v, wherever they are stored.
struct Split {
    std::string where;
    std::vector<Tensor> from{};  // a packed qkv, or q, k and v
    std::array<rotary::HeadTensor, parts> in{};
    std::array<int64_t, parts> heads{};
    int64_t batch = 0, tokens = 0, features = 0;
    std::optional<Tensor> q_weight{}, k_weight{};
    float epsilon = 0;
    rotary::QkvArguments arguments{};  // including caches, if present
    std::vector<runtime::Region> regions{};

    Dtype dtype() const { return from[0].dtype(where + ": qkv"); }
    bool empty() const { return batch * tokens * features * (heads[0] + heads[1] + heads[2]) == 0; }
};

Split of_packed(const std::string& where, Tensor qkv, int64_t num_heads, int64_t num_kv_heads) {
    Split call{where};
    if (qkv.dimensions() != 3) fail(where + ": qkv needs three dimensions, batch, tokens and features");
    const int64_t all_heads = num_heads + 2 * num_kv_heads, columns = qkv.sizes()[2];
    if (num_heads < 0 || num_kv_heads < 0 || all_heads < 1 || columns % all_heads)
        fail(where + ": qkv has " + std::to_string(columns) + " features for " + std::to_string(all_heads) +
             " heads");
    call.batch = qkv.sizes()[0], call.tokens = qkv.sizes()[1], call.features = columns / all_heads;
    call.heads = {num_heads, num_kv_heads, num_kv_heads};
    const Dtype dtype = qkv.dtype(where + ": qkv");
    call.from.push_back(with_unit_stride(std::move(qkv), dtype));
    int64_t first = 0;
    for (size_t i = 0; i < parts; first += call.heads[i++])
        call.in[i] = heads_within(call.from[0], dtype, first, call.features);
    return call;
}

Split of_heads(const std::string& where, std::vector<Tensor> from) {
    Split call{where};
    const Dtype dtype = from[0].dtype(where + ": q");
    for (size_t i = 0; i < parts; ++i) {
        const Tensor& tensor = from[i];
        if (tensor.dimensions() != 4 || tensor.dtype(where + ": a tensor") != dtype ||
            !(tensor.device() == from[0].device()))
            fail(where + ": q, k and v need four dimensions, one dtype and one device");
        for (const size_t axis : {0, 1, 3})
            if (tensor.sizes()[axis] != from[0].sizes()[axis])
                fail(where + ": q, k and v differ in more than heads");
        call.heads[i] = tensor.sizes()[2];
    }
    if (call.heads[1] != call.heads[2]) fail(where + ": k and v differ in heads");
    call.batch = from[0].sizes()[0], call.tokens = from[0].sizes()[1], call.features = from[0].sizes()[3];
    for (size_t i = 0; i < parts; ++i) {
        call.from.push_back(with_unit_stride(std::move(from[i]), dtype));
        call.in[i] = heads_of(call.from[i]);
    }
    return call;
}

void launch(StableIValue* stack, Split& call, RotationTensors& rotation) {
    const Dtype dtype = call.dtype();
    const Device device = call.from[0].device();
    const std::string prefix = call.where + ": ";
    const Placement placement(device);
    std::vector<Tensor> out;
    for (const int64_t count : call.heads) {
        const std::array<int64_t, 4> sizes = {call.batch, call.tokens, count, call.features};
        out.push_back(placement.empty(sizes, dtype));
    }
    rotary::QkvArguments& arguments = call.arguments;
    arguments.weight_type =
        check_weights(call.where, {&call.q_weight, &call.k_weight}, call.features, device, call.regions);
    if (call.empty()) {
        check_rotation(prefix, rotation, call.tokens, call.features);
    } else {
        arguments.rotation =
            describe_rotation(prefix, rotation, device, call.batch, call.tokens, call.features, call.regions);
        arguments.epsilon = call.epsilon;
        arguments.batch = static_cast<uint32_t>(call.batch);
        arguments.tokens = static_cast<uint32_t>(call.tokens);
        for (const Tensor& from : call.from)
            if (from.element_count())
                call.regions.push_back({from.data(), from.extent_bytes(dtype), "qkv", false});
        for (size_t i = 0; i < parts; ++i) {
            rotary::HeadPart& part = arguments.parts[i];
            part.in = call.in[i];
            part.out = heads_of(out[i]);
            part.heads = static_cast<uint32_t>(call.heads[i]);
            part.turned = i < 2;
            if (out[i].element_count())
                call.regions.push_back({out[i].data(), out[i].extent_bytes(dtype), part_names[i], true});
        }
        if (call.q_weight) arguments.parts[0].weight = call.q_weight->data();
        if (call.k_weight) arguments.parts[1].weight = call.k_weight->data();
        placement.launch(rotary::plan_qkv(placement.target(), element_type(dtype), arguments), call.regions);
    }
    for (size_t i = 0; i < parts; ++i) stack[i] = to_result(std::move(out[i]));
}

void qkv_rotary(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 3 + rotation_arguments + 3 || result_count != parts)
        fail("qkv_rotary is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor qkv = given.tensor();
    std::optional<Tensor> q_weight = given.optional_tensor(), k_weight = given.optional_tensor();
    RotationTensors rotation = read_rotation(given);
    const int64_t num_heads = given.integer(), num_kv_heads = given.integer();
    Split call = of_packed("qkv_rotary", std::move(qkv), num_heads, num_kv_heads);
    call.q_weight = std::move(q_weight);
    call.k_weight = std::move(k_weight);
    call.epsilon = static_cast<float>(given.number());
    launch(stack, call, rotation);
}

void qkv_rotary_cache(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 10 + rotation_arguments + 2 || result_count != parts)
        fail("qkv_rotary_cache is registered with another schema");
    Arguments given(stack, argument_count);
    std::vector<Tensor> heads;
    for (size_t i = 0; i < parts; ++i) heads.push_back(given.tensor());
    Split call = of_heads("qkv_rotary_cache", std::move(heads));
    call.q_weight = given.optional_tensor();
    call.k_weight = given.optional_tensor();
    const Tensor caches[2] = {given.tensor(), given.tensor()}, slots = given.tensor();
    const std::optional<Tensor> scales[2] = {given.optional_tensor(), given.optional_tensor()};
    RotationTensors rotation = read_rotation(given);
    call.epsilon = static_cast<float>(given.number());
    const int64_t layout = given.integer();
    const std::string& where = call.where;
    if (layout < 0 || layout > static_cast<int64_t>(CacheLayout::hnd))
        fail(where + ": layout is " + std::to_string(layout) + "; 0 .. 3 are allowed");
    if (call.dtype() == Dtype::float32) fail(where + ": a cache is written from bfloat16 or float16");
    const char* const names[2][2] = {{"key_cache", "k_scale"}, {"value_cache", "v_scale"}};
    std::optional<CacheView> first;
    for (size_t i = 0; i < 2; ++i) {
        const CacheView view =
            view_of_cache(where, caches[i], static_cast<CacheLayout>(layout), i == 1, call.dtype());
        if (!first) first = view;
        if (view.heads != call.heads[1] || view.features != call.features || view.blocks != first->blocks ||
            view.block_size != first->block_size || view.code != first->code)
            fail(where + ": the caches differ from each other, or from k and v in heads or features");
        const Tensor* scale = given_or_null(scales[i]);
        rotary::HeadPart& part = call.arguments.parts[1 + i];
        part.cache = output_to(where, view, scale, call.from[0].device());
        part.cached = true;
        add_cache_regions(call.regions, caches[i], names[i][0], view, scale, names[i][1]);
    }
    call.arguments.slots = slots_in(where, slots, call.batch * call.tokens, *first);
    if (slots.element_count()) add_slot_region(call.regions, slots, call.arguments.slots);
    launch(stack, call, rotation);
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
