// torch/element_type.h: a floating-point dtype of a tensor as the kernels' plans name it.
// SPDX-License-Identifier: MIT
#pragma once

#include "kernels/element_type.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

constexpr ElementType element_type(Dtype dtype) {
    switch (dtype) {
        case Dtype::bfloat16:
            return ElementType::bf16;
        case Dtype::float16:
            return ElementType::f16;
        case Dtype::float32:
        case Dtype::uint8:  // no kernel reads integers as elements
        case Dtype::int32:
        case Dtype::int64:
            break;
    }
    return ElementType::f32;
}

}  // namespace hipkittens::torch_binding
