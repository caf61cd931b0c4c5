// torch/attention_merge.cpp: validates the tensors of two partial attention results, and launches their merge.
// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include "kernels/paged_attention/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// out_a, out_b (T, H, D) of one dtype, lse_a, lse_b float32 (H, T) -> out (T, H, D) contiguous, lse (H, T).
constexpr const char* attention_merge_schema =
    "attention_merge(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b) -> (Tensor, Tensor)";

const std::string where = "attention_merge: ";

void attention_merge(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 4 || result_count != 2) fail("attention_merge is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor out_a = given.tensor();
    const Tensor lse_a = given.tensor();
    Tensor out_b = given.tensor();
    const Tensor lse_b = given.tensor();
    const Dtype dtype = out_a.dtype(where + "out_a");
    if (out_a.dimensions() != 3 || out_b.dimensions() != 3 || out_b.dtype(where + "out_b") != dtype)
        fail(where + "out_a and out_b need three dimensions and one dtype");
    const int64_t tokens = out_a.sizes()[0], heads = out_a.sizes()[1], head_dim = out_a.sizes()[2];
    for (size_t axis = 0; axis < 3; ++axis)
        if (out_a.sizes()[axis] != out_b.sizes()[axis]) fail(where + "out_a and out_b need one shape");
    if (head_dim % paged_attention::merge_columns) fail(where + "the head size needs to be a multiple of 8");
    for (const Tensor* lse : {&lse_a, &lse_b})
        if (lse->dtype(where + "lse") != Dtype::float32 || lse->dimensions() != 2 ||
            lse->sizes()[0] != heads || lse->sizes()[1] != tokens || !lse->is_contiguous() ||
            !(lse->device() == out_a.device()))
            fail(where +
                 "lse_a and lse_b need to be contiguous float32 (heads, tokens) on the device of out_a");
    if (!(out_b.device() == out_a.device())) fail(where + "out_a and out_b are on different devices");

    const Placement placement(out_a.device());
    Tensor out = placement.empty(out_a.sizes(), dtype), lse = placement.empty(lse_a.sizes(), Dtype::float32);
    if (out.element_count() > 0) {
        out_a = readable(std::move(out_a), dtype);
        out_b = readable(std::move(out_b), dtype);
        const auto part = [&](const Tensor& rows, const Tensor& sums) {
            const int64_t size = bytes_of(dtype);
            return paged_attention::PartArgument{rows.data(), rows.strides()[0] * size,
                                                 rows.strides()[1] * size,
                                                 static_cast<const float*>(sums.data())};
        };
        paged_attention::MergeArguments arguments{};
        arguments.parts[0] = part(out_a, lse_a);
        arguments.parts[1] = part(out_b, lse_b);
        arguments.out = out.data();
        arguments.lse = static_cast<float*>(lse.data());
        arguments.tokens = static_cast<uint32_t>(tokens);
        arguments.head_dim = static_cast<uint32_t>(head_dim);
        arguments.heads = divisor_of(static_cast<uint32_t>(heads));
        const auto region = [](const Tensor& tensor, Dtype dtype, const char* name, bool written) {
            return runtime::Region{tensor.data(), tensor.extent_bytes(dtype), name, written};
        };
        const std::vector<runtime::Region> regions = {
            region(out_a, dtype, "out_a", false), region(lse_a, Dtype::float32, "lse_a", false),
            region(out_b, dtype, "out_b", false), region(lse_b, Dtype::float32, "lse_b", false),
            region(out, dtype, "out", true),      region(lse, Dtype::float32, "lse", true)};
        placement.launch(paged_attention::plan_merge(placement.target(), element_type(dtype), arguments),
                         regions);
    }
    stack[0] = to_result(std::move(out));
    stack[1] = to_result(std::move(lse));
}

const Registration registration{{
    {attention_merge_schema, &attention_merge},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
