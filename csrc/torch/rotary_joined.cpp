// torch/rotary_joined.cpp: validates the tensors of heads that are rotated and written to a cache, plans them and launches them.
// SPDX-License-Identifier: MIT
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

// q_nope, q_pe, k_nope, k_pe: (batch, tokens, heads, features); all features of q_pe and k_pe are rotated.
// Returns q and k, concatenated.
constexpr const char* mla_rotary_schema =
    "mla_rotary(Tensor q_nope, Tensor q_pe, Tensor k_nope, Tensor k_pe, " ROTATION_SCHEMA
    ") -> (Tensor, Tensor)";
// kv_cache: (blocks, block size, heads, features of k), slots (batch x tokens,). With q_codes q is uint8: the
// target's 8-bit floats.
constexpr const char* mla_rotary_cache_schema =
    "mla_rotary_cache(Tensor q_nope, Tensor q_pe, Tensor k_nope, Tensor k_pe, Tensor(a!) kv_cache, Tensor "
    "slots, Tensor? scale, Tensor? q_scale, " ROTATION_SCHEMA ", bool q_codes) -> (Tensor, Tensor)";
// q, k, v: (batch, tokens, heads, features). Returns the rotated q and k. Slots and caches as in cache_write,
// slots (batch x tokens,).
constexpr const char* rotary_cache_write_schema =
    "rotary_cache_write(Tensor q, Tensor k, Tensor v, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor "
    "slots, Tensor? k_scale, Tensor? v_scale, " ROTATION_SCHEMA ", int layout) -> (Tensor, Tensor)";

const Tensor* given_or_null(const std::optional<Tensor>& tensor) { return tensor ? &*tensor : nullptr; }

// Heads to rotate, and the source of their other features: the same tensor, if `rest` is none.
struct Heads {
    Tensor turned;
    std::optional<Tensor> rest;
    const char* name;
    bool turns = true;

    int64_t count() const { return turned.sizes()[2]; }
    int64_t features() const { return turned.sizes()[3] + (rest ? rest->sizes()[3] : 0); }
    std::array<int64_t, 4> sizes() const {
        return {turned.sizes()[0], turned.sizes()[1], count(), features()};
    }
};

// The common dtype of the tensors, whose required properties must agree.
Dtype check_heads(const std::string& where, const std::vector<Heads>& all) {
    const Heads& first = all[0];
    const Dtype dtype = first.turned.dtype(where + ": " + first.name);
    const auto check = [&](const Tensor& tensor, int64_t heads) {
        if (tensor.dimensions() != 4 || tensor.dtype(where + ": a tensor") != dtype ||
            !(tensor.device() == first.turned.device()) || tensor.sizes()[0] != first.turned.sizes()[0] ||
            tensor.sizes()[1] != first.turned.sizes()[1] || tensor.sizes()[2] != heads)
            fail(where +
                 ": tensors need the shape (batch, tokens, heads, features), one dtype and one device");
    };
    for (const Heads& heads : all) {
        if (heads.turned.dimensions() != 4) fail(where + ": four dimensions are needed");
        check(heads.turned, heads.count());
        if (heads.rest) check(*heads.rest, heads.count());
        if (heads.features() != first.features()) fail(where + ": heads differ in features");
    }
    return dtype;
}

rotary::HeadTensor heads_of(const Tensor& tensor) {
    const auto strides = tensor.strides();
    return {tensor.data(), strides[0], strides[1], strides[2]};
}

// A further destination that heads are written to besides a tensor of their own.
struct Destination {
    CacheOutput cache;
    CacheSlots slots;
    bool cached;
};

struct Call {
    std::string where;
    std::vector<Heads> heads;
    RotationTensors rotation;
    std::vector<Destination> destinations{heads.size()};
    std::vector<runtime::Region> regions{};
};

// `out`: the results, or none for heads that only go to a cache. For heads with a rest, all features of `turned` are rotated.
void launch(const Placement& placement, Call& call, const std::vector<Tensor*>& out) {
    const Heads& first = call.heads[0];
    const Dtype dtype = check_heads(call.where, call.heads);
    const int64_t batch = first.turned.sizes()[0], tokens = first.turned.sizes()[1];
    const std::string prefix = call.where + ": ";
    check_rotation(prefix, call.rotation, tokens, first.features());
    if (batch * tokens == 0) return;
    rotary::JoinedArguments arguments{};
    arguments.rotation = describe_rotation(prefix, call.rotation, first.turned.device(), batch, tokens,
                                           first.features(), call.regions);
    arguments.batch = static_cast<uint32_t>(batch);
    const uint32_t features = arguments.rotation.features, pairs = arguments.rotation.pairs,
                   begin = arguments.rotation.first, end = begin ? begin : features;
    size_t used = 0;
    const auto add = [&](const Heads& heads, const Destination& to, const Tensor* result, const Tensor& from,
                         uint32_t moved, bool turns, uint32_t begin, uint32_t end) {
        if (heads.count() == 0 || begin == end) return;
        rotary::JoinedPart& part = arguments.parts[used++];
        part = {.in = heads_of(from),
                .out = result ? heads_of(*result) : rotary::HeadTensor{},
                .cache = to.cache,
                .slots = to.slots,
                .heads = static_cast<uint32_t>(heads.count()),
                .turns = turns,
                .cached = to.cached,
                .begin = begin,
                .end = end,
                .moved = moved};
    };
    for (size_t i = 0; i < call.heads.size(); ++i) {
        Heads& heads = call.heads[i];
        heads.turned = with_unit_stride(std::move(heads.turned), dtype);
        const auto may_read = [&](const Tensor& tensor) {
            if (tensor.element_count())
                call.regions.push_back({tensor.data(), tensor.extent_bytes(dtype), heads.name, false});
        };
        may_read(heads.turned);
        if (out[i] && out[i]->element_count())
            call.regions.push_back({out[i]->data(), out[i]->extent_bytes(dtype), "out", true});
        const Destination& to = call.destinations[i];
        if (!heads.turns) {
            add(heads, to, out[i], heads.turned, 0, false, 0, features);
            continue;
        }
        const uint32_t rest = begin ? 0 : 2 * pairs;  // first of the features that are copied
        if (heads.rest) {
            if (heads.turned.sizes()[3] != 2 * pairs)
                fail(prefix + "the tables do not turn all features of " + heads.name);
            heads.rest = with_unit_stride(std::move(*heads.rest), dtype);
            may_read(*heads.rest);
        }
        add(heads, to, out[i], heads.turned, heads.rest ? begin : 0, true, begin, begin + 2 * pairs);
        add(heads, to, out[i], heads.rest ? *heads.rest : heads.turned, heads.rest ? rest : 0, false, rest,
            end);
    }
    placement.launch(rotary::plan_joined(placement.target(), element_type(dtype), tokens, arguments),
                     call.regions);
}

// Makes the launch write the heads to the cache as well.
void add_cache(Call& call, size_t number, const Tensor& cache, const char* name, const CacheView& view,
               const Tensor* scale, const char* scale_name) {
    const Heads& heads = call.heads[number];
    if (view.heads != heads.count() || view.features != heads.features())
        fail(call.where + ": " + name + " differs from its rows in heads or features");
    call.destinations[number].cache = output_to(call.where, view, scale, heads.turned.device());
    call.destinations[number].cached = true;
    add_cache_regions(call.regions, cache, name, view, scale, scale_name);
}

void add_slots(Call& call, const Tensor& slots, const CacheView& view,
               std::initializer_list<size_t> numbers) {
    const auto sizes = call.heads[0].turned.sizes();
    const CacheSlots described = slots_in(call.where, slots, sizes[0] * sizes[1], view);
    for (const size_t number : numbers) call.destinations[number].slots = described;
    if (slots.element_count()) add_slot_region(call.regions, slots, described);
}

std::vector<Heads> latent_heads(Arguments& given) {
    Tensor q_nope = given.tensor(), q_pe = given.tensor(), k_nope = given.tensor(), k_pe = given.tensor();
    std::vector<Heads> heads;
    heads.push_back({std::move(q_pe), std::move(q_nope), "q_pe"});
    heads.push_back({std::move(k_pe), std::move(k_nope), "k_pe"});
    return heads;
}

void mla_rotary(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 4 + rotation_arguments || result_count != 2)
        fail("mla_rotary is registered with another schema");
    Arguments given(stack, argument_count);
    std::vector<Heads> heads = latent_heads(given);
    Call call{"mla_rotary", std::move(heads), read_rotation(given)};
    const Dtype dtype = check_heads(call.where, call.heads);
    const Placement placement(call.heads[0].turned.device());
    Tensor q = placement.empty(call.heads[0].sizes(), dtype);
    Tensor k = placement.empty(call.heads[1].sizes(), dtype);
    launch(placement, call, {&q, &k});
    stack[0] = to_result(std::move(q));
    stack[1] = to_result(std::move(k));
}

void mla_rotary_cache(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 8 + rotation_arguments + 1 || result_count != 2)
        fail("mla_rotary_cache is registered with another schema");
    Arguments given(stack, argument_count);
    std::vector<Heads> heads = latent_heads(given);
    const Tensor kv_cache = given.tensor(), slots = given.tensor();
    const std::optional<Tensor> scale = given.optional_tensor(), q_scale = given.optional_tensor();
    Call call{"mla_rotary_cache", std::move(heads), read_rotation(given)};
    const bool q_codes = given.boolean();
    const Dtype dtype = check_heads(call.where, call.heads);
    if (dtype == Dtype::float32) fail(call.where + ": a cache is written from bfloat16 or float16");
    const Placement placement(call.heads[0].turned.device());
    Tensor q = placement.empty(call.heads[0].sizes(), q_codes ? Dtype::uint8 : dtype);
    Tensor k = placement.empty(call.heads[1].sizes(), dtype);
    const CacheView view = view_of_cache(call.where, kv_cache, CacheLayout::nhd, false, dtype);
    add_cache(call, 1, kv_cache, "kv_cache", view, given_or_null(scale), "scale");
    add_slots(call, slots, view, {1});
    if (q_codes && q.element_count()) {
        // The rows of all batches are slots of one block.
        const auto sizes = call.heads[0].sizes();
        CacheView rows{};
        rows.tensor = {q.data(), 0, sizes[3], 0, sizes[2] * sizes[3], 0, 1, one_group, one_group};
        rows.heads = sizes[2];
        rows.features = sizes[3];
        rows.dtype = Dtype::uint8;
        rows.code = CacheCode::fp8;
        add_cache(call, 0, q, "q", rows, given_or_null(q_scale), "q_scale");
        CacheSlots& places = call.destinations[0].slots;
        places.block_size = UINT32_MAX;
        places.code = CacheCode::fp8;
    } else if (q_scale) {
        fail(call.where + ": q_scale is for q of 8-bit floats");
    }
    launch(placement, call, {q_codes ? nullptr : &q, &k});
    stack[0] = to_result(std::move(q));
    stack[1] = to_result(std::move(k));
}

void rotary_cache_write(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 8 + rotation_arguments + 1 || result_count != 2)
        fail("rotary_cache_write is registered with another schema");
    Arguments given(stack, argument_count);
    std::vector<Heads> heads;
    for (const char* name : {"q", "k", "v"}) heads.push_back({given.tensor(), std::nullopt, name});
    heads[2].turns = false;
    const Tensor key_cache = given.tensor(), value_cache = given.tensor(), slots = given.tensor();
    const std::optional<Tensor> k_scale = given.optional_tensor(), v_scale = given.optional_tensor();
    Call call{"rotary_cache_write", std::move(heads), read_rotation(given)};
    const int64_t number = given.integer();
    if (number < 0 || number > static_cast<int64_t>(CacheLayout::hnd))
        fail(call.where + ": layout is " + std::to_string(number) + "; 0 .. 3 are allowed");
    const auto layout = static_cast<CacheLayout>(number);
    const Dtype dtype = check_heads(call.where, call.heads);
    if (dtype == Dtype::float32) fail(call.where + ": a cache is written from bfloat16 or float16");
    const Placement placement(call.heads[0].turned.device());
    Tensor q = placement.empty(call.heads[0].sizes(), dtype),
           k = placement.empty(call.heads[1].sizes(), dtype);
    const CacheView keys = view_of_cache(call.where, key_cache, layout, false, dtype);
    const CacheView values = view_of_cache(call.where, value_cache, layout, true, dtype);
    if (keys.blocks != values.blocks || keys.block_size != values.block_size || keys.code != values.code)
        fail(call.where + ": the caches differ");
    add_cache(call, 1, key_cache, "key_cache", keys, given_or_null(k_scale), "k_scale");
    add_cache(call, 2, value_cache, "value_cache", values, given_or_null(v_scale), "v_scale");
    add_slots(call, slots, keys, {1, 2});
    launch(placement, call, {&q, &k, nullptr});
    stack[0] = to_result(std::move(q));
    stack[1] = to_result(std::move(k));
}

const Registration registration{{
    {mla_rotary_schema, &mla_rotary},
    {mla_rotary_cache_schema, &mla_rotary_cache},
    {rotary_cache_write_schema, &rotary_cache_write},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
