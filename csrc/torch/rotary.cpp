// torch/rotary.cpp: checks the tensors of a rotation, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/rotary/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// x, q, k: 4 dimensions, (batch, tokens, heads, features), or (batch, heads, tokens, features) with heads_first.
// cos, sin: (positions, rotated features / 2). positions: int32 or int64, (batch, tokens).
constexpr const char* rotary_schema =
    "rotary(Tensor x, Tensor cos, Tensor sin, Tensor? positions, SymInt offset, bool interleaved, bool "
    "heads_first, "
    "bool inverse) -> Tensor";
constexpr const char* rotary_qk_schema =
    "rotary_qk(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor? positions, SymInt offset, bool "
    "interleaved, "
    "bool heads_first, bool inverse) -> (Tensor, Tensor)";
constexpr const char* rotary_in_place_schema =
    "rotary_(Tensor(a!) x, Tensor cos, Tensor sin, Tensor? positions, SymInt offset, bool interleaved, "
    "bool heads_first, bool inverse) -> ()";
constexpr const char* rotary_qk_in_place_schema =
    "rotary_qk_(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, Tensor? positions, SymInt offset, "
    "bool interleaved, bool heads_first, bool inverse) -> ()";

// A copy where the last dimension has gaps.
Tensor with_unit_stride(Tensor tensor, Dtype dtype) {
    if (tensor.sizes().back() <= 1 || tensor.strides().back() == 1) return tensor;
    Tensor copy = Tensor::empty(tensor.sizes(), dtype, tensor.device());
    copy.copy_from(tensor);
    return copy;
}

struct Call {
    std::vector<Tensor> in;
    Tensor cos, sin;
    std::optional<Tensor> positions;
    int64_t offset;
    bool interleaved, heads_first, inverse;
};

Call read_call(StableIValue* stack, uint64_t argument_count, uint64_t result_count, size_t tensors,
               uint64_t results) {
    if (argument_count != tensors + 7 || result_count != results)
        fail("rotary is registered with another schema");
    Arguments arguments(stack, argument_count);
    std::vector<Tensor> in;
    for (size_t i = 0; i < tensors; ++i) in.push_back(arguments.tensor());
    Tensor cos = arguments.tensor(), sin = arguments.tensor();
    std::optional<Tensor> positions = arguments.optional_tensor();
    const int64_t offset = arguments.integer();
    const bool interleaved = arguments.boolean(), heads_first = arguments.boolean();
    const bool inverse = arguments.boolean();
    return {std::move(in), std::move(cos), std::move(sin), std::move(positions),
            offset,        interleaved,    heads_first,    inverse};
}

rotary::HeadTensor describe(const Tensor& tensor, bool heads_first) {
    const auto s = tensor.strides();
    return {tensor.data(), s[0], s[heads_first ? 2 : 1], s[heads_first ? 1 : 2]};
}

// Ids are looked at before the launch where they can be; on a GPU an id without a row gives NaN.
template <class T>
void check_positions(const Tensor& positions, int64_t rows) {
    const T* data = static_cast<const T*>(positions.data());
    const auto size = positions.sizes(), stride = positions.strides();
    for (int64_t i = 0; i < size[0]; ++i) {
        for (int64_t j = 0; j < size[1]; ++j) {
            const int64_t id = data[i * stride[0] + j * stride[1]];
            if (id < 0 || id >= rows)
                fail("rotary: position " + std::to_string(id) + " at [" + std::to_string(i) + ", " +
                     std::to_string(j) + "]; cos and sin have " + std::to_string(rows) + " rows");
        }
    }
}

// The results, or none when the tensors themselves are written.
std::vector<Tensor> rotate(Call call, bool in_place) {
    const std::string where = "rotary: ";
    const Tensor& first = call.in[0];
    const Dtype dtype = first.dtype(where + "x"), table_dtype = call.cos.dtype(where + "cos");
    const size_t token_axis = call.heads_first ? 2 : 1, head_axis = call.heads_first ? 1 : 2;
    if (call.cos.dimensions() != 2 || call.sin.dimensions() != 2 ||
        call.sin.dtype(where + "sin") != table_dtype ||
        !std::equal(call.cos.sizes().begin(), call.cos.sizes().end(), call.sin.sizes().begin()))
        fail(where + "cos and sin need two dimensions, the same shape and the same dtype");
    for (const Tensor& tensor : call.in) {
        if (tensor.dimensions() != 4) fail(where + "4 dimensions are needed");
        if (tensor.dtype(where + "x") != dtype) fail(where + "q and k have different dtypes");
        if (!(tensor.device() == first.device()) || !(tensor.device() == call.cos.device()) ||
            !(tensor.device() == call.sin.device()))
            fail(where + "the tensors are on different devices");
        for (const size_t axis : {size_t{0}, token_axis, size_t{3}})
            if (tensor.sizes()[axis] != first.sizes()[axis])
                fail(where + "q and k differ in batch, tokens or features");
        if (in_place && tensor.sizes()[3] > 1 && tensor.strides()[3] != 1)
            fail(where + "in place, the last dimension needs unit stride");
    }
    const int64_t batch = first.sizes()[0], tokens = first.sizes()[token_axis], features = first.sizes()[3];
    rotary::RotaryArguments arguments{};
    arguments.table_rows = call.cos.sizes()[0];
    arguments.pairs = static_cast<int32_t>(call.cos.sizes()[1]);
    if (call.cos.sizes()[1] < 1 || 2 * call.cos.sizes()[1] > features)
        fail(where + "cos has " + std::to_string(call.cos.sizes()[1]) + " columns for " +
             std::to_string(features) + " features");
    const Placement placement(first.device());
    std::vector<Tensor> out;
    bool empty = true;
    for (const Tensor& tensor : call.in) {
        if (!in_place) out.push_back(placement.empty(tensor.sizes(), dtype));
        empty &= tensor.element_count() == 0;
    }
    if (empty) return out;

    std::vector<runtime::Region> regions;
    if (call.positions) {
        const Tensor& positions = *call.positions;
        const int32_t number = positions.dtype_number();
        const bool wide = number == aoti_torch_dtype_int64();
        if (!wide && number != aoti_torch_dtype_int32()) fail(where + "positions need to be int32 or int64");
        if (positions.dimensions() != 2 || positions.sizes()[0] != batch || positions.sizes()[1] != tokens)
            fail(where + "positions need the shape (batch, tokens)");
        if (!(positions.device() == first.device())) fail(where + "positions are on another device");
        if (first.device().cpu) {
            if (wide) {
                check_positions<int64_t>(positions, arguments.table_rows);
            } else {
                check_positions<int32_t>(positions, arguments.table_rows);
            }
        }
        arguments.positions = positions.data();
        arguments.position_batch = positions.strides()[0];
        arguments.position_token = positions.strides()[1];
        arguments.position_bytes = wide ? 8 : 4;
        const uint64_t last = static_cast<uint64_t>(batch - 1) * arguments.position_batch +
                              static_cast<uint64_t>(tokens - 1) * arguments.position_token;
        regions.push_back({positions.data(), (last + 1) * arguments.position_bytes, "positions", false});
    } else if (call.offset < 0 || call.offset + tokens > arguments.table_rows) {
        fail(where + "offset " + std::to_string(call.offset) + " and " + std::to_string(tokens) +
             " tokens; cos and sin have " + std::to_string(arguments.table_rows) + " rows");
    }
    call.cos = with_unit_stride(std::move(call.cos), table_dtype);
    call.sin = with_unit_stride(std::move(call.sin), table_dtype);
    arguments.cos = call.cos.data();
    arguments.sin = call.sin.data();
    arguments.cos_stride = call.cos.strides()[0];
    arguments.sin_stride = call.sin.strides()[0];
    arguments.offset = call.offset;
    arguments.batch = static_cast<uint32_t>(batch);
    arguments.tokens = static_cast<uint32_t>(tokens);
    arguments.features = static_cast<int32_t>(features);
    arguments.table_type = element_type(table_dtype);
    arguments.interleaved = call.interleaved;
    arguments.inverse = call.inverse;
    arguments.copies_rest = !in_place && 2 * arguments.pairs < features;
    regions.push_back({call.cos.data(), call.cos.extent_bytes(table_dtype), "cos", false});
    regions.push_back({call.sin.data(), call.sin.extent_bytes(table_dtype), "sin", false});
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
