// torch/rotary.cpp: validates the tensors of a rotation, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/rotary/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/rotary_tables.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// x, q, k: 4 dimensions, (batch, tokens, heads, features), or (batch, heads, tokens, features) with heads_first.
constexpr const char* rotary_schema = "rotary(Tensor x, " ROTATION_SCHEMA ", bool heads_first) -> Tensor";
constexpr const char* rotary_qk_schema =
    "rotary_qk(Tensor q, Tensor k, " ROTATION_SCHEMA ", bool heads_first) -> (Tensor, Tensor)";
constexpr const char* rotary_in_place_schema =
    "rotary_(Tensor(a!) x, " ROTATION_SCHEMA ", bool heads_first) -> ()";
constexpr const char* rotary_qk_in_place_schema =
    "rotary_qk_(Tensor(a!) q, Tensor(b!) k, " ROTATION_SCHEMA ", bool heads_first) -> ()";

struct Call {
    std::vector<Tensor> in;
    RotationTensors rotation;
    bool heads_first;
};

Call read_call(StableIValue* stack, uint64_t argument_count, uint64_t result_count, size_t tensors,
               uint64_t results) {
    if (argument_count != tensors + rotation_arguments + 1 || result_count != results)
        fail("rotary is registered with another schema");
    Arguments arguments(stack, argument_count);
    std::vector<Tensor> in;
    for (size_t i = 0; i < tensors; ++i) in.push_back(arguments.tensor());
    RotationTensors rotation = read_rotation(arguments);
    return {std::move(in), std::move(rotation), arguments.boolean()};
}

rotary::HeadTensor describe(const Tensor& tensor, bool heads_first) {
    const auto s = tensor.strides();
    return {tensor.data(), s[0], s[heads_first ? 2 : 1], s[heads_first ? 1 : 2]};
}

// Returns the results, or nothing when rotating in place.
std::vector<Tensor> rotate(Call call, bool in_place) {
    const std::string where = "rotary: ";
    const Tensor& first = call.in[0];
    const Dtype dtype = first.dtype(where + "x");
    const size_t token_axis = call.heads_first ? 2 : 1, head_axis = call.heads_first ? 1 : 2;
    for (const Tensor& tensor : call.in) {
        if (tensor.dimensions() != 4) fail(where + "4 dimensions are needed");
        if (tensor.dtype(where + "x") != dtype) fail(where + "q and k have different dtypes");
        if (!(tensor.device() == first.device())) fail(where + "the tensors are on different devices");
        for (const size_t axis : {size_t{0}, token_axis, size_t{3}})
            if (tensor.sizes()[axis] != first.sizes()[axis])
                fail(where + "q and k differ in batch, tokens or features");
        if (in_place && tensor.sizes()[3] > 1 && tensor.strides()[3] != 1)
            fail(where + "in place, the last dimension needs unit stride");
    }
    const int64_t batch = first.sizes()[0], tokens = first.sizes()[token_axis], features = first.sizes()[3];
    rotary::RotaryArguments arguments{};
    const Placement placement(first.device());
    std::vector<Tensor> out;
    bool empty = true;
    for (const Tensor& tensor : call.in) {
        if (!in_place) out.push_back(placement.empty(tensor.sizes(), dtype));
        empty &= tensor.element_count() == 0;
    }
    if (empty) {
        check_rotation(where, call.rotation, tokens, features);
        return out;
    }

    std::vector<runtime::Region> regions;
    arguments.rotation =
        describe_rotation(where, call.rotation, first.device(), batch, tokens, features, regions);
    arguments.batch = static_cast<uint32_t>(batch);
    arguments.tokens = static_cast<uint32_t>(tokens);
    arguments.copies_rest = !in_place && 2 * arguments.rotation.pairs < arguments.rotation.features;
    for (size_t i = 0; i < call.in.size(); ++i) {
        call.in[i] = with_unit_stride(std::move(call.in[i]), dtype);
        const Tensor& in = call.in[i];
        rotary::Rotated& part = arguments.parts[i];
        part.heads = static_cast<int32_t>(in.sizes()[head_axis]);
        part.in = describe(in, call.heads_first);
        part.out = in_place ? part.in : describe(out[i], call.heads_first);
        const char* name = call.in.size() == 1 ? "x" : i == 0 ? "q" : "k";
        regions.push_back({in.data(), in.extent_bytes(dtype), name, in_place});
        if (!in_place) regions.push_back({out[i].data(), out[i].extent_bytes(dtype), "out", true});
    }
    const Launch launch = rotary::plan(placement.target(), element_type(dtype), arguments);
    placement.launch(launch, regions);
    return out;
}

void rotary(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    std::vector<Tensor> out = rotate(read_call(stack, argument_count, result_count, 1, 1), false);
    stack[0] = to_result(std::move(out[0]));
}

void rotary_qk(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    std::vector<Tensor> out = rotate(read_call(stack, argument_count, result_count, 2, 2), false);
    stack[0] = to_result(std::move(out[0]));
    stack[1] = to_result(std::move(out[1]));
}

void rotary_in_place(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    rotate(read_call(stack, argument_count, result_count, 1, 0), true);
}

void rotary_qk_in_place(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    rotate(read_call(stack, argument_count, result_count, 2, 0), true);
}

const Registration registration{{
    {rotary_schema, &rotary},
    {rotary_qk_schema, &rotary_qk},
    {rotary_in_place_schema, &rotary_in_place},
    {rotary_qk_in_place_schema, &rotary_qk_in_place},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
