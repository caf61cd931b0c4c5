// torch/router_top1.cpp: validates the tensors of a top-1 router with its matrix product, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include "kernels/router/plan_top1.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// x (tokens, features), w (features, experts), bfloat16 or float16 -> weights (tokens, 1 + shared) float32, ids of the same shape
// int32, logits (tokens,) float32 of the chosen experts.
constexpr const char* router_top1_schema =
    "router_top1(Tensor x, Tensor w, SymInt shared) -> (Tensor, Tensor, Tensor)";

void router_top1(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 3 || result_count != 3) fail("router_top1 is registered with another schema");
    const std::string where = "router_top1: ";
    Arguments given(stack, argument_count);
    Tensor x = given.tensor(), w = given.tensor();
    const int64_t shared = given.integer();
    const Dtype dtype = x.dtype(where + "x");
    if (bytes_of(dtype) != 2 || w.dtype(where + "w") != dtype)
        fail(where + "x and w need to be bfloat16 or float16, both the same");
    if (x.dimensions() != 2 || w.dimensions() != 2 || x.sizes()[1] != w.sizes()[0])
        fail(where + "x needs to be (tokens, features) and w (features, experts)");
    if (!(w.device() == x.device())) fail(where + "w is on another device");
    const int64_t tokens = x.sizes()[0], features = x.sizes()[1], experts = w.sizes()[1];
    if (w.extent_bytes(dtype) > UINT32_MAX) w = contiguous_copy(std::move(w), dtype);
    router::check_top1(tokens, experts, shared, w.extent_bytes(dtype));
    const Placement placement(x.device());
    const std::vector<int64_t> sizes = {tokens, 1 + shared}, one = {tokens};
    Tensor weights = placement.empty(sizes, Dtype::float32), ids = placement.empty(sizes, Dtype::int32),
           logits = placement.empty(one, Dtype::float32);
    if (tokens > 0) {
        const std::vector<Tensor*> tensors = {&x};
        const RowView view(tensors, dtype);
        router::Top1Arguments arguments{};
        arguments.x = view.rows(x, 0);
        arguments.rows = view.counts();
        arguments.w = w.data();
        arguments.w_bytes = static_cast<uint32_t>(w.extent_bytes(dtype));
        arguments.w_features_step = static_cast<uint32_t>(w.strides()[0]);
        arguments.w_expert_step = static_cast<uint32_t>(w.strides()[1]);
        arguments.features = static_cast<uint32_t>(features);
        arguments.experts = static_cast<uint32_t>(experts);
        arguments.shared = static_cast<uint32_t>(shared);
        arguments.wide = view.aligned(tensors);
        arguments.weights = static_cast<float*>(weights.data());
        arguments.ids = static_cast<int32_t*>(ids.data());
        arguments.logits = static_cast<float*>(logits.data());
        const std::vector<runtime::Region> regions = {
            {x.data(), x.extent_bytes(dtype), "x", false},
            {w.data(), w.extent_bytes(dtype), "w", false},
            {weights.data(), weights.extent_bytes(Dtype::float32), "weights", true},
            {ids.data(), ids.extent_bytes(Dtype::int32), "ids", true},
            {logits.data(), logits.extent_bytes(Dtype::float32), "logits", true}};
        placement.launch(router::plan_top1(placement.shape(), element_type(dtype), arguments), regions);
    }
    stack[0] = to_result(std::move(weights));
    stack[1] = to_result(std::move(ids));
    stack[2] = to_result(std::move(logits));
}

const Registration registration{{{router_top1_schema, &router_top1}}};

}  // namespace
}  // namespace hipkittens::torch_binding
