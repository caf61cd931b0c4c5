// torch/expert_sort.cpp: validates the tensors of a sort of (token, expert) pairs, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include "kernels/expert_sort/plan.h"
#include "torch/placement.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// ids (tokens, k) int32, weights (tokens, k) float32, expert_map int32, all contiguous. layout: 0 aligned, 1 packed, 2
// ragged. Returns weights (capacity, or 0 without weights) float32, entries (capacity) int32, block_experts, tokens_left
// (capacity / block, 0 when ragged) int32, offsets (experts + 1) int32, num_valid (2) int32, places (tokens, k) int32.
constexpr const char* expert_sort_schema =
    "expert_sort(Tensor ids, Tensor? weights, Tensor? expert_map, int num_experts, int block, int layout) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)";

enum Layout : int64_t { aligned, packed, ragged };

void check_contiguous(const Tensor& tensor, const char* name, int32_t dtype, int64_t elements,
                      const Tensor& ids) {
    const std::string who = std::string("expert_sort: ") + name;
    if (tensor.dtype_number() != dtype)
        fail(who + (dtype == aoti_torch_dtype_int32() ? " needs to be int32" : " needs to be float32"));
    if (tensor.element_count() != elements || !tensor.is_contiguous())
        fail(who + " needs to be contiguous, with " + std::to_string(elements) + " elements");
    if (!(tensor.device() == ids.device())) fail(who + " is on another device");
}

void expert_sort(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 6 || result_count != 7) fail("expert_sort is registered with another schema");
    Arguments given(stack, argument_count);
    const Tensor ids = given.tensor();
    const std::optional<Tensor> weights = given.optional_tensor(), expert_map = given.optional_tensor();
    const int64_t experts = given.integer(), block = given.integer(), layout = given.integer();
    if (ids.dimensions() != 2) fail("expert_sort: ids need two dimensions, tokens and choices");
    const int64_t tokens = ids.sizes()[0], k = ids.sizes()[1], pairs = tokens * k;
    if (layout < aligned || layout > ragged || (layout == ragged && block != 1))
        fail("expert_sort: layout is " + std::to_string(layout) + " with blocks of " + std::to_string(block) +
             "; 0 (aligned), 1 (packed), and 2 (ragged) with blocks of 1 are allowed");
    expert_sort::check(tokens, k, experts, block, layout == packed);
    check_contiguous(ids, "ids", aoti_torch_dtype_int32(), pairs, ids);
    if (weights) check_contiguous(*weights, "weights", aoti_torch_dtype_float32(), pairs, ids);
    if (expert_map)
        check_contiguous(*expert_map, "expert_map", aoti_torch_dtype_int32(), expert_map->element_count(),
                         ids);

    const int64_t capacity = expert_sort::capacity(pairs, experts, block);
    const int64_t blocks = layout == ragged ? 0 : capacity / block, segments = expert_sort::segments(pairs);
    const int64_t weight_count = weights ? capacity : 0, offset_count = experts + 1, two = 2;
    const int64_t counts = segments > 1 ? (segments + 1) * experts : 0;
    const Placement placement(ids.device());
    const auto numbers = [&](const int64_t& count, Dtype dtype = Dtype::int32) {
        return placement.empty({&count, 1}, dtype);
    };
    Tensor entries = numbers(capacity), sorted = numbers(weight_count, Dtype::float32);
    Tensor block_experts = numbers(blocks), tokens_left = numbers(blocks), offsets = numbers(offset_count);
    Tensor num_valid = numbers(two), places = placement.empty(ids.sizes(), Dtype::int32);
    const Tensor segment_counts = numbers(counts);

    std::vector<runtime::Region> regions;
    const auto address = [&](const Tensor& tensor, const char* name, bool written) -> void* {
        const uint64_t bytes = tensor.extent_bytes(Dtype::int32);  // or float32, of the same size
        if (bytes == 0) return nullptr;
        regions.push_back({tensor.data(), bytes, name, written});
        return tensor.data();
    };
    const auto integers = [&](const Tensor& tensor, const char* name, bool written = true) {
        return static_cast<int32_t*>(address(tensor, name, written));
    };
    expert_sort::SortArguments arguments{};
    arguments.ids = integers(ids, "ids", false);
    if (expert_map) {
        arguments.expert_map = integers(*expert_map, "expert_map", false);
        arguments.mapped_ids = static_cast<uint32_t>(expert_map->element_count());
        if (!arguments.expert_map) fail("expert_sort: expert_map has no elements");
    }
    if (weights) {
        arguments.weights = static_cast<const float*>(address(*weights, "weights", false));
        arguments.sorted_weights = static_cast<float*>(address(sorted, "sorted weights", true));
    }
    arguments.entries = integers(entries, "entries");
    arguments.block_experts = integers(block_experts, "block_experts");
    arguments.tokens_left = integers(tokens_left, "tokens_left");
    arguments.offsets = integers(offsets, "offsets");
    arguments.num_valid = integers(num_valid, "num_valid");
    arguments.places = integers(places, "places");
    arguments.segment_counts = integers(segment_counts, "counts of segments");
    arguments.pairs = static_cast<uint32_t>(pairs);
    arguments.k = static_cast<uint32_t>(k);
    arguments.experts = static_cast<uint32_t>(experts);
    arguments.block = static_cast<uint32_t>(block);
    arguments.blocks = static_cast<uint32_t>(blocks);
    arguments.capacity = static_cast<uint32_t>(capacity);
    arguments.packed = layout == packed;
    arguments.padding = static_cast<int32_t>(layout == aligned  ? pairs
                                             : layout == packed ? k << expert_sort::packed_token_bits | tokens
                                                                : -1);
    arguments.segments = static_cast<uint32_t>(segments);
    for (const Launch& launch : expert_sort::plan(placement.target(), arguments))
        placement.launch(launch, regions);

    Tensor* const results[] = {&sorted,  &entries,   &block_experts, &tokens_left,
                               &offsets, &num_valid, &places};
    for (size_t i = 0; i < std::size(results); ++i) stack[i] = to_result(std::move(*results[i]));
}

const Registration registration{{{expert_sort_schema, &expert_sort}}};

}  // namespace
}  // namespace hipkittens::torch_binding
