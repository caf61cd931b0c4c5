// torch/mul_add.cpp: validates the tensors of a x + b, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "kernels/mul_add/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// a and b: of x's shape and dtype; or one element, of x's dtype or float32; or absent, in which case the
// number replaces the tensor.
constexpr const char* mul_add_schema =
    "mul_add(Tensor x, Tensor? a, Tensor? b, float number_a, float number_b) -> Tensor";
constexpr const char* mul_add_into_schema =
    "mul_add_into(Tensor x, Tensor? a, Tensor? b, float number_a, float number_b, Tensor(a!) out) -> ()";

using mul_add::Source;

struct Problem {
    std::string where;
    Tensor x;
    std::optional<Tensor> a, b;
    Dtype dtype;
    mul_add::MulAddArguments arguments{};
    std::vector<runtime::Region> regions;

    Problem(std::string name, Arguments& given)
        : where(std::move(name)), x(given.tensor()), dtype(x.dtype(where + "x")) {
        a = given.optional_tensor();
        b = given.optional_tensor();
        arguments.number_a = static_cast<float>(given.number());
        arguments.number_b = static_cast<float>(given.number());
        arguments.source_a = source_of(a, "a", arguments.float_a);
        arguments.source_b = source_of(b, "b", arguments.float_b);
    }
    Source source_of(const std::optional<Tensor>& tensor, const char* name, uint32_t& is_float) const {
        if (!tensor) return Source::number;
        const Dtype of = tensor->dtype(where + name);
        if (!(tensor->device() == x.device())) fail(where + name + " needs the device of x");
        if (std::equal(tensor->sizes().begin(), tensor->sizes().end(), x.sizes().begin(), x.sizes().end()) &&
            of == dtype)
            return Source::each;
        if (tensor->element_count() != 1 || (of != dtype && of != Dtype::float32))
            fail(where + name + " needs the shape and dtype of x, or one element of that dtype or float32");
        is_float = of == Dtype::float32;
        return Source::one;
    }
    // The two must be the same elements or be disjoint: a thread reads its own elements before it writes
    // them.
    void check_overlap(const Tensor& other, Dtype of, const Tensor& out, const char* name) const {
        const auto begin = [](const Tensor& tensor) { return static_cast<const char*>(tensor.data()); };
        const bool same = other.data() == out.data() && other.is_contiguous() && of == dtype &&
                          other.element_count() == out.element_count();
        if (!same && begin(other) < begin(out) + out.extent_bytes(dtype) &&
            begin(out) < begin(other) + other.extent_bytes(of))
            fail(where + "out shares some of its memory with " + name + "; it may be " + name +
                 " itself, dense, or apart from it");
    }
    // result is dense, with x's shape and dtype.
    void launch(const Placement& placement, const Tensor& result) {
        std::vector<Tensor*> tensors = {&x};
        if (arguments.source_a == Source::each) tensors.push_back(&*a);
        if (arguments.source_b == Source::each) tensors.push_back(&*b);
        const bool one_row = x.element_count() <= INT32_MAX &&
                             std::all_of(tensors.begin(), tensors.end(),
                                         [](Tensor* tensor) { return tensor->is_contiguous(); });
        if (one_row) {
            arguments.rows = {1, 1, 1};
            arguments.columns = static_cast<uint32_t>(x.element_count());
            arguments.x = {x.data(), 0, 0, 0};
            if (a) arguments.a = {a->data(), 0, 0, 0};
            if (b) arguments.b = {b->data(), 0, 0, 0};
            arguments.aligned = reinterpret_cast<uintptr_t>(result.data()) % 4 == 0 &&
                                std::all_of(tensors.begin(), tensors.end(), [](Tensor* tensor) {
                                    return reinterpret_cast<uintptr_t>(tensor->data()) % 4 == 0;
                                });
        } else {
            const int64_t columns = x.sizes().back();
            mul_add::check(x.element_count() / columns, columns);
            const RowView view(tensors, dtype);
            arguments.rows = view.counts();
            arguments.columns = static_cast<uint32_t>(columns);
            size_t position = 0;
            arguments.x = view.rows(x, position++);
            if (a)
                arguments.a = arguments.source_a == Source::each ? view.rows(*a, position++)
                                                                 : StridedRows{a->data(), 0, 0, 0};
            if (b)
                arguments.b = arguments.source_b == Source::each ? view.rows(*b, position++)
                                                                 : StridedRows{b->data(), 0, 0, 0};
            arguments.aligned = columns * size_of(element_type(dtype)) % 4 == 0 && view.aligned(tensors) &&
                                reinterpret_cast<uintptr_t>(result.data()) % 4 == 0;
        }
        arguments.result = result.data();
        const auto add = [&](const Tensor& tensor, Dtype of, const char* name) {
            if (tensor.data() != result.data())
                regions.push_back({tensor.data(), tensor.extent_bytes(of), name, false});
        };
        add(x, dtype, "x");
        if (a) add(*a, arguments.float_a ? Dtype::float32 : dtype, "a");
        if (b) add(*b, arguments.float_b ? Dtype::float32 : dtype, "b");
        regions.push_back({result.data(), result.extent_bytes(dtype), "out", true});
        placement.launch(mul_add::plan(placement.target(), element_type(dtype), arguments), regions);
    }
};

void mul_add_result(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 5 || result_count != 1) fail("mul_add is registered with another schema");
    Arguments given(stack, argument_count);
    Problem problem("mul_add: ", given);
    const Placement placement(problem.x.device());
    Tensor result = placement.empty(problem.x.sizes(), problem.dtype);
    if (result.element_count() > 0) problem.launch(placement, result);
    stack[0] = to_result(std::move(result));
}

void mul_add_into(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 6 || result_count != 0) fail("mul_add_into is registered with another schema");
    Arguments given(stack, argument_count);
    Problem problem("mul_add_into: ", given);
    const Tensor out = given.tensor();
    const auto sizes = problem.x.sizes();
    if (!std::equal(sizes.begin(), sizes.end(), out.sizes().begin(), out.sizes().end()) ||
        out.dtype("mul_add_into: out") != problem.dtype || !(out.device() == problem.x.device()) ||
        !out.is_contiguous())
        fail("mul_add_into: out needs to be dense, of the shape, dtype and device of x");
    if (out.element_count() == 0) return;
    problem.check_overlap(problem.x, problem.dtype, out, "x");
    if (problem.a)
        problem.check_overlap(*problem.a, problem.arguments.float_a ? Dtype::float32 : problem.dtype, out,
                              "a");
    if (problem.b)
        problem.check_overlap(*problem.b, problem.arguments.float_b ? Dtype::float32 : problem.dtype, out,
                              "b");
    problem.launch(Placement(problem.x.device()), out);
}

const Registration registration{{
    {mul_add_schema, &mul_add_result},
    {mul_add_into_schema, &mul_add_into},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
