// torch/attention_tensors.cpp: attention tensors in the form the kernels read.
// SPDX-License-Identifier: MIT
#include "torch/attention_tensors.h"

namespace hipkittens::torch_binding {

std::string shape_text(const char* name, const Tensor& tensor) {
    std::string text;
    for (const int64_t size : tensor.sizes()) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return std::string(name) + " is (" + text + ")";
}

attention::TensorLayout layout_of(const Tensor& tensor) {
    const auto strides = tensor.strides();
    if (strides.size() == 3) return {tensor.data(), 0, strides[0], strides[1]};
    return {tensor.data(), strides[0], strides[1], strides[2]};
}

}  // namespace hipkittens::torch_binding
