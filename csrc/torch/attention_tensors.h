// torch/attention_tensors.h: attention tensors in the form the kernels read.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "kernels/attention/plan.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

// For example "q is (2, 3)".
std::string shape_text(const char* name, const Tensor& tensor);

// (batch, rows, heads, head size), or without the batch.
attention::TensorLayout layout_of(const Tensor& tensor);

}  // namespace hipkittens::torch_binding
