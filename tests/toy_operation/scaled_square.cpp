// torch/scaled_square.cpp: launches scaled_square and its gradient.
// SPDX-License-Identifier: MIT
#include "kernels/scaled_square/plan.h"
#include "torch/element_type.h"
#include "torch/placement.h"
#include "torch/registration.h"
#include "torch/row_view.h"

namespace hipkittens::torch_binding {
namespace {

template <class Kind>
Tensor launch(Tensor x, Tensor* grad, double scale) {
    const Dtype dtype = x.dtype("x");
    x = contiguous_copy(std::move(x), dtype);
    if (grad) *grad = contiguous_copy(std::move(*grad), dtype);
    const Placement placement(x.device());
    Tensor result = placement.empty(x.sizes(), dtype);
    const scaled_square::SquareArguments arguments{x.data(), grad ? grad->data() : nullptr, result.data(),
                                                   x.element_count(), static_cast<float>(scale)};
    std::vector<runtime::Region> regions = {{x.data(), x.extent_bytes(dtype), "x", false},
                                            {result.data(), result.extent_bytes(dtype), "result", true}};
    if (grad) regions.push_back({grad->data(), grad->extent_bytes(dtype), "grad", false});
    if (x.element_count() > 0)
        placement.launch(scaled_square::plan<Kind>(placement.target(), element_type(dtype), arguments),
                         regions);
    return result;
}

void forward(StableIValue* stack, uint64_t argument_count, uint64_t) {
    Arguments given(stack, argument_count);
    Tensor x = given.tensor();
    stack[0] = to_result(launch<scaled_square::kinds::square>(std::move(x), nullptr, given.number()));
}

void backward(StableIValue* stack, uint64_t argument_count, uint64_t) {
    Arguments given(stack, argument_count);
    Tensor grad = given.tensor(), x = given.tensor();
    stack[0] = to_result(launch<scaled_square::kinds::square_backward>(std::move(x), &grad, given.number()));
}

const Registration registration{{
    {"scaled_square(Tensor x, float scale) -> Tensor", &forward},
    {"scaled_square_backward(Tensor grad, Tensor x, float scale) -> Tensor", &backward},
}};

}  // namespace
}  // namespace hipkittens::torch_binding
