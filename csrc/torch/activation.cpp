// torch/activation.cpp: checks the tensors of a gated activation, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/activation/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// x (..., 2 d) -> (..., d): activation(x[..., :d]) * x[..., d:]. activation: 0 silu, 1 gelu_tanh.
constexpr const char* gated_activation_schema = "gated_activation(Tensor x, int activation) -> Tensor";
// The gradient of x from that of the result.
constexpr const char* gated_activation_backward_schema =
    "gated_activation_backward(Tensor dy, Tensor x, int activation) -> Tensor";

activation::Activation activation_of(int64_t number, const std::string& where) {
    if (number != 0 && number != 1)
        fail(where + "activation is " + std::to_string(number) + "; 0 (silu) and 1 (gelu_tanh) are allowed");
    return number == 0 ? activation::Activation::silu : activation::Activation::gelu_tanh;
}

// Of y. Fails where there is none.
std::vector<int64_t> result_sizes(const Tensor& x, const std::string& where) {
    std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
    if (sizes.empty() || sizes.back() % 2)
        fail(where + "x needs rows of an even number of elements, the gate and what it multiplies");
    sizes.back() /= 2;
    if (const int64_t elements = x.element_count(); elements > 0)
        activation::check(elements / (2 * sizes.back()), sizes.back());
    return sizes;
}

// All arguments but dy.
activation::GatedArguments arguments_of(const Tensor& x, const Tensor& result, const RowView& view,
                                        const std::vector<Tensor*>& tensors) {
    const int64_t columns = x.sizes().back() / 2;
    activation::GatedArguments arguments{};
    arguments.x = view.rows(x, 0);
    arguments.result = result.data();
    arguments.rows = view.counts();
    arguments.columns = static_cast<uint32_t>(columns);
    arguments.aligned = columns * size_of(element_type(view.dtype())) % 4 == 0 && view.aligned(tensors);
    return arguments;
}

void gated_activation(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 2 || result_count != 1) fail("gated_activation is registered with another schema");
    const std::string where = "gated_activation: ";
    Arguments given(stack, argument_count);
    Tensor x = given.tensor();
    const activation::Activation kind = activation_of(given.integer(), where);
    const Dtype dtype = x.dtype(where + "x");
    const Placement placement(x.device());
    Tensor y = placement.empty(result_sizes(x, where), dtype);
    if (y.element_count() > 0) {
        const std::vector<Tensor*> tensors = {&x};
        const RowView view(tensors, dtype);
        const auto arguments = arguments_of(x, y, view, tensors);
        const runtime::Region regions[] = {{x.data(), x.extent_bytes(dtype), "x", false},
                                           {y.data(), y.extent_bytes(dtype), "y", true}};
        placement.launch(activation::plan<activation::kinds::gated_forward>(
                             placement.target(), element_type(dtype), kind, arguments),
                         regions);
    }
    stack[0] = to_result(std::move(y));
}

void gated_activation_backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 3 || result_count != 1)
        fail("gated_activation_backward is registered with another schema");
    const std::string where = "gated_activation_backward: ";
    Arguments given(stack, argument_count);
    Tensor dy = given.tensor(), x = given.tensor();
    const activation::Activation kind = activation_of(given.integer(), where);
    const Dtype dtype = x.dtype(where + "x");
    const std::vector<int64_t> sizes = result_sizes(x, where);
    if (!std::equal(sizes.begin(), sizes.end(), dy.sizes().begin(), dy.sizes().end()))
        fail(where + "dy needs the shape of x with half as many elements in a row");
    if (dy.dtype(where + "dy") != dtype || !(dy.device() == x.device()))
        fail(where + "dy needs the dtype and the device of x");
    const Placement placement(x.device());
    Tensor dx = placement.empty(x.sizes(), dtype);
    if (dx.element_count() > 0) {
        const std::vector<Tensor*> tensors = {&x, &dy};
        const RowView view(tensors, dtype);
        auto arguments = arguments_of(x, dx, view, tensors);
        arguments.dy = view.rows(dy, 1);
        const runtime::Region regions[] = {{x.data(), x.extent_bytes(dtype), "x", false},
                                           {dy.data(), dy.extent_bytes(dtype), "dy", false},
                                           {dx.data(), dx.extent_bytes(dtype), "dx", true}};
        placement.launch(activation::plan<activation::kinds::gated_backward>(
                             placement.target(), element_type(dtype), kind, arguments),
                         regions);
    }
    stack[0] = to_result(std::move(dx));
}

const Registration registration{{
    {gated_activation_schema, &gated_activation},
    {gated_activation_backward_schema, &gated_activation_backward},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
