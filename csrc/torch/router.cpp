// torch/router.cpp: validates the tensors of an expert router, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include "kernels/router/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// logits (..., experts), bias (experts) float32 -> weights (..., k + shared) float32, ids (..., k + shared) int32.
// score: 0 softmax, 1 sigmoid, 2 sqrtsoftplus.
constexpr const char* router_schema =
    "router(Tensor logits, Tensor? bias, SymInt k, int score, int groups, int topk_groups, bool renormalize, "
    "float scale, SymInt shared) -> (Tensor, Tensor)";

void router(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 9 || result_count != 2) fail("router is registered with another schema");
    const std::string where = "router: ";
    Arguments given(stack, argument_count);
    Tensor logits = given.tensor();
    const std::optional<Tensor> bias = given.optional_tensor();
    const int64_t k = given.integer(), score = given.integer(), groups = given.integer();
    const int64_t chosen_groups = given.integer();
    const bool renormalize = given.boolean();
    const double scale = given.number();
    const int64_t shared = given.integer();
    const Dtype dtype = logits.dtype(where + "logits");
    std::vector<int64_t> sizes(logits.sizes().begin(), logits.sizes().end());
    if (sizes.empty()) fail(where + "logits need at least 1 dimension");
    if (score < 0 || score > 2)
        fail(where + "score is " + std::to_string(score) + "; 0, 1 and 2 are allowed");
    const int64_t experts = sizes.back();
    int64_t tokens = 1;
    for (size_t axis = 0; axis + 1 < sizes.size(); ++axis) tokens *= sizes[axis];
    router::check(tokens, experts, k, groups, chosen_groups, shared);
    sizes.back() = k + shared;
    const Placement placement(logits.device());
    Tensor weights = placement.empty(sizes, Dtype::float32), ids = placement.empty(sizes, Dtype::int32);
    if (tokens > 0) {
        const std::vector<Tensor*> tensors = {&logits};
        const RowView view(tensors, dtype);
        const auto& counts = view.sizes();
        router::RouteArguments arguments{};
        arguments.logits = {logits.data(), view.strides(0)[2], view.strides(0)[1], view.strides(0)[0]};
        arguments.rows = {static_cast<uint32_t>(tokens), static_cast<uint32_t>(counts[1]),
                          static_cast<uint32_t>(counts[0])};
        arguments.weights = static_cast<float*>(weights.data());
        arguments.ids = static_cast<int32_t*>(ids.data());
        arguments.experts = static_cast<uint32_t>(experts);
        arguments.k = static_cast<uint32_t>(k);
        arguments.shared = static_cast<uint32_t>(shared);
        arguments.groups = static_cast<uint32_t>(groups);
        arguments.chosen_groups = static_cast<uint32_t>(chosen_groups);
        arguments.renormalize = renormalize;
        arguments.scale = static_cast<float>(scale);
        arguments.aligned = view.aligned(tensors);
        arguments.element = element_type(dtype);
        arguments.score = static_cast<router::Score>(score);
        std::vector<runtime::Region> regions = {
            {logits.data(), logits.extent_bytes(dtype), "logits", false},
            {weights.data(), weights.extent_bytes(Dtype::float32), "weights", true},
            {ids.data(), ids.extent_bytes(Dtype::int32), "ids", true}};
        if (bias) {
            if (bias->dtype(where + "bias") != Dtype::float32 || bias->element_count() != experts ||
                !bias->is_contiguous())
                fail(where + "bias needs to be float32 and contiguous, with an element for each expert");
            if (!(bias->device() == logits.device())) fail(where + "bias is on another device");
            arguments.bias = static_cast<const float*>(bias->data());
            regions.push_back({bias->data(), bias->extent_bytes(Dtype::float32), "bias", false});
        }
        placement.launch(router::plan(placement.target(), arguments), regions);
    }
    stack[0] = to_result(std::move(weights));
    stack[1] = to_result(std::move(ids));
}

const Registration registration{{{router_schema, &router}}};

}  // namespace
}  // namespace hipkittens::torch_binding
