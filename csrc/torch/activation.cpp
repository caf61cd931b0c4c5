// torch/activation.cpp: validates the tensors of an activation, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/activation/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

using activation::Activation;
using activation::ActivationArguments;

// activation: 0 silu, 1 gelu_tanh, 2 gelu, 3 relu, 4 tanh; gated operators also accept 5 swiglu.
constexpr const char* activation_schema = "activation(Tensor x, int activation) -> Tensor";
constexpr const char* activation_backward_schema =
    "activation_backward(Tensor dy, Tensor x, int activation) -> Tensor";
// activation(x) * other, with alpha in silu and swiglu, both factors clamped to limit; limit below 0: no
// clamping. Without other, x (..., 2 d) holds both factors. bias (2 d,) is added first.
constexpr const char* gated_activation_schema =
    "gated_activation(Tensor x, Tensor? other, Tensor? bias, int activation, float alpha, float limit) -> "
    "Tensor";
// dother is empty without other: it is then the second half of dx.
constexpr const char* gated_activation_backward_schema =
    "gated_activation_backward(Tensor dy, Tensor x, Tensor? other, Tensor? bias, int activation, float "
    "alpha, float limit) -> (Tensor dx, Tensor dother)";

struct Problem {
    std::string where;
    bool gated;
    Tensor x;
    std::optional<Tensor> other, bias;
    Dtype dtype;
    ActivationArguments arguments{};

    Problem(std::string name, bool is_gated, Arguments& given)
        : where(std::move(name)), gated(is_gated), x(given.tensor()), dtype(x.dtype(where + "x")) {
        if (gated) {
            other = given.optional_tensor();
            bias = given.optional_tensor();
        }
        const int64_t number = given.integer();
        const auto last = gated ? Activation::swiglu : Activation::tanh;
        if (number < 0 || number > static_cast<int64_t>(last))
            fail(where + "activation is " + std::to_string(number) + "; 0 .. " +
                 std::to_string(static_cast<int64_t>(last)) + " are allowed");
        arguments.activation = static_cast<Activation>(number);
        arguments.alpha = gated ? static_cast<float>(given.number()) : 1;
        arguments.limit = gated ? given.upper_bound() : 0;
        if (other) check_like_x(*other, "other");
        if (bias) check_bias();
    }
    bool halves() const { return gated && !other; }

    void check_like_x(const Tensor& tensor, const char* name) const {
        const std::vector<int64_t> sizes = result_sizes();
        if (!std::equal(sizes.begin(), sizes.end(), tensor.sizes().begin(), tensor.sizes().end()))
            fail(where + name + " needs the shape of x" +
                 (halves() ? " with half as many elements in a row" : ""));
        if (tensor.dtype(where + name) != dtype || !(tensor.device() == x.device()))
            fail(where + name + " needs the dtype and the device of x");
    }
    void check_bias() {
        const std::vector<int64_t> sizes = result_sizes();
        if (sizes.empty() || bias->dimensions() != 1 || bias->sizes()[0] != 2 * sizes.back())
            fail(where + "bias needs one dimension with the elements of a row of x and of other");
        if (bias->dtype(where + "bias") != dtype || !(bias->device() == x.device()))
            fail(where + "bias needs the dtype and the device of x");
        bias = with_unit_stride(std::move(*bias), dtype);
    }
    // The sizes of y. Fails if rows of x cannot be halved.
    std::vector<int64_t> result_sizes() const {
        std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
        if (!halves()) return sizes;
        if (sizes.empty() || sizes.back() % 2)
            fail(where + "x needs rows of an even number of elements, the gate and what it multiplies");
        sizes.back() /= 2;
        // Checked before anything is allocated.
        if (const int64_t elements = x.element_count(); elements > 0)
            activation::check(elements / (2 * sizes.back()), sizes.back());
        return sizes;
    }
    // result, and the gradient's dother, have contiguous rows; dy is passed for the kind `backward`.
    template <class Kind>
    void launch(const Placement& placement, const Tensor& result, const Tensor* dother = nullptr,
                Tensor* dy = nullptr) {
        if (result.element_count() == 0) return;
        std::vector<Tensor*> tensors = {&x};
        if (other) tensors.push_back(&*other);
        if (dy) tensors.push_back(dy);
        const bool one_row = !halves() && !bias && x.element_count() <= INT32_MAX &&
                             std::all_of(tensors.begin(), tensors.end(),
                                         [](Tensor* tensor) { return tensor->is_contiguous(); });
        const int64_t size = size_of(element_type(dtype));
        if (one_row) {
            arguments.rows = {1, 1, 1};
            arguments.columns = static_cast<uint32_t>(x.element_count());
            arguments.x = {x.data(), 0, 0, 0};
            if (other) arguments.other = {other->data(), 0, 0, 0};
            if (dy) arguments.dy = {dy->data(), 0, 0, 0};
            arguments.aligned = std::all_of(tensors.begin(), tensors.end(), [](Tensor* tensor) {
                return reinterpret_cast<uintptr_t>(tensor->data()) % 4 == 0;
            });
        } else {
            const int64_t columns = x.sizes().back() / (halves() ? 2 : 1);
            activation::check(x.element_count() / x.sizes().back(), columns);
            const RowView view(tensors, dtype);
            arguments.rows = view.counts();
            arguments.columns = static_cast<uint32_t>(columns);
            arguments.x = view.rows(x, 0);
            if (other) arguments.other = view.rows(*other, 1);
            if (dy) arguments.dy = view.rows(*dy, tensors.size() - 1);
            arguments.aligned = columns * size % 4 == 0 && view.aligned(tensors);
            if (bias) {
                arguments.bias = bias->data();
                arguments.aligned = arguments.aligned && reinterpret_cast<uintptr_t>(bias->data()) % 4 == 0;
            }
        }
        arguments.result = result.data();
        arguments.result_step = arguments.columns;
        if (halves()) {
            arguments.other = arguments.x;
            arguments.other.data = static_cast<const char*>(x.data()) + arguments.columns * size;
            if (dy) {
                arguments.result_step *= 2;
                arguments.dother = static_cast<char*>(result.data()) + arguments.columns * size;
            }
        } else if (dother) {
            arguments.dother = dother->data();
        }
        std::vector<runtime::Region> regions = {{x.data(), x.extent_bytes(dtype), "x", false}};
        if (other) regions.push_back({other->data(), other->extent_bytes(dtype), "other", false});
        if (bias) regions.push_back({bias->data(), bias->extent_bytes(dtype), "bias", false});
        if (dy) regions.push_back({dy->data(), dy->extent_bytes(dtype), "dy", false});
        regions.push_back({result.data(), result.extent_bytes(dtype), dy ? "dx" : "y", true});
        if (other && dother) regions.push_back({dother->data(), dother->extent_bytes(dtype), "dother", true});
        placement.launch(activation::plan<Kind>(placement.target(), element_type(dtype), gated, arguments),
                         regions);
    }
};

template <bool gated>
void forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    const char* name = gated ? "gated_activation" : "activation";
    if (argument_count != (gated ? 6 : 2) || result_count != 1)
        fail(std::string(name) + " is registered with another schema");
    Arguments given(stack, argument_count);
    Problem problem(std::string(name) + ": ", gated, given);
    const Placement placement(problem.x.device());
    Tensor y = placement.empty(problem.result_sizes(), problem.dtype);
    problem.launch<activation::kinds::forward>(placement, y);
    stack[0] = to_result(std::move(y));
}

template <bool gated>
void backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    const char* name = gated ? "gated_activation_backward" : "activation_backward";
    if (argument_count != (gated ? 7 : 3) || result_count != (gated ? 2 : 1))
        fail(std::string(name) + " is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor dy = given.tensor();
    Problem problem(std::string(name) + ": ", gated, given);
    problem.check_like_x(dy, "dy");
    const Placement placement(problem.x.device());
    const std::vector<int64_t> none = {0};
    Tensor dx = placement.empty(problem.x.sizes(), problem.dtype);
    Tensor dother =
        placement.empty(problem.other ? problem.x.sizes() : std::span<const int64_t>(none), problem.dtype);
    problem.launch<activation::kinds::backward>(placement, dx, &dother, &dy);
    stack[0] = to_result(std::move(dx));
    if (gated) stack[1] = to_result(std::move(dother));
}

const Registration registration{{
    {activation_schema, &forward<false>},
    {activation_backward_schema, &backward<false>},
    {gated_activation_schema, &forward<true>},
    {gated_activation_backward_schema, &backward<true>},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
