// torch/softmax.cpp: validates the tensors of a softmax, plans it and launches it.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <vector>

#include "kernels/softmax/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

// Softmax over the last dimension.
constexpr const char* softmax_schema = "softmax(Tensor x) -> Tensor";
constexpr const char* softmax_backward_schema = "softmax_backward(Tensor dy, Tensor y) -> Tensor";

// Runs on tensors of one shape: x, or y and dy. The result is dense.
template <class Short, class Long>
Tensor compute(const std::vector<Tensor*>& tensors, Dtype dtype, const std::vector<const char*>& names,
               const char* result_name) {
    const ElementType element = element_type(dtype);
    const int64_t elements = tensors[0]->element_count(), columns = tensors[0]->sizes().back();
    if (elements > 0) softmax::check(elements / columns, columns, element);  // before anything is allocated
    const Placement placement(tensors[0]->device());
    Tensor result = placement.empty(tensors[0]->sizes(), dtype);
    if (elements == 0) return result;
    const RowView view(tensors, dtype);
    softmax::SoftmaxArguments arguments{};
    arguments.x = view.rows(*tensors[0], 0);
    if (tensors.size() > 1) arguments.dy = view.rows(*tensors[1], 1);
    arguments.result = result.data();
    arguments.rows = view.counts();
    arguments.columns = static_cast<uint32_t>(columns);
    arguments.wide = columns % 8 == 0 && view.aligned(tensors);
    std::vector<runtime::Region> regions;
    for (size_t i = 0; i < tensors.size(); ++i)
        regions.push_back({tensors[i]->data(), tensors[i]->extent_bytes(dtype), names[i], false});
    regions.push_back({result.data(), result.extent_bytes(dtype), result_name, true});
    placement.launch(softmax::plan<Short, Long>(placement.target(), element, arguments), regions);
    return result;
}

void forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 1 || result_count != 1) fail("softmax is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor x = given.tensor();
    const Dtype dtype = x.dtype("softmax: x");
    if (x.dimensions() < 1) fail("softmax: x needs at least 1 dimension");
    stack[0] = to_result(
        compute<softmax::kinds::short_forward, softmax::kinds::long_forward>({&x}, dtype, {"x"}, "y"));
}

void backward(StableIValue* stack, uint64_t argument_count, uint64_t result_count) {
    if (argument_count != 2 || result_count != 1) fail("softmax_backward is registered with another schema");
    Arguments given(stack, argument_count);
    Tensor dy = given.tensor(), y = given.tensor();
    const Dtype dtype = y.dtype("softmax_backward: y");
    const auto sizes = y.sizes(), of_gradient = dy.sizes();
    if (sizes.empty()) fail("softmax_backward: y needs at least 1 dimension");
    if (!std::equal(sizes.begin(), sizes.end(), of_gradient.begin(), of_gradient.end()))
        fail("softmax_backward: dy needs the shape of y");
    if (dy.dtype("softmax_backward: dy") != dtype || !(dy.device() == y.device()))
        fail("softmax_backward: dy needs the dtype and the device of y");
    stack[0] = to_result(compute<softmax::kinds::short_backward, softmax::kinds::long_backward>(
        {&y, &dy}, dtype, {"y", "dy"}, "dx"));
}

const Registration registration{{
    {softmax_schema, &forward},
    {softmax_backward_schema, &backward},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
