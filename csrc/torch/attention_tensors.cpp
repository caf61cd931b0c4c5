// torch/attention_tensors.cpp: tensors of attention as its kernels read them.
// SPDX-License-Identifier: MIT
#include "torch/attention_tensors.h"

namespace hipkittens::torch_binding {

std::string shape_text(const char* name, const Tensor& tensor) {
    std::string text;
    for (const int64_t size : tensor.sizes()) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return std::string(name) + " is (" + text + ")";
}

static bool is_readable(const Tensor& tensor) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    const size_t last = sizes.size() - 1;
    if (reinterpret_cast<uintptr_t>(tensor.data()) % 4 || (sizes[last] > 1 && strides[last] != 1))
        return false;
    for (size_t axis = 0; axis < last; ++axis)
        if (sizes[axis] > 1 && strides[axis] % 2) return false;
    return true;
}

Tensor readable(Tensor tensor, Dtype dtype) {
    if (tensor.element_count() == 0 || is_readable(tensor)) return tensor;
    Tensor copy = Tensor::empty(tensor.sizes(), dtype, tensor.device());
    copy.copy_from(tensor);
    return copy;
}

attention::TensorLayout layout_of(const Tensor& tensor) {
    const auto strides = tensor.strides();
    if (strides.size() == 3) return {tensor.data(), 0, strides[0], strides[1]};
    return {tensor.data(), strides[0], strides[1], strides[2]};
}

}  // namespace hipkittens::torch_binding
