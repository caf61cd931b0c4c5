// torch/row_view.cpp: tensors as rows of their last dimension.
// SPDX-License-Identifier: MIT
#include "torch/row_view.h"

#include <utility>

namespace hipkittens::torch_binding {

Tensor contiguous_copy(Tensor tensor, Dtype dtype) {
    Tensor copy = Tensor::empty(tensor.sizes(), dtype, tensor.device());
    copy.copy_from(tensor);
    return copy;
}

Tensor with_unit_stride(Tensor tensor, Dtype dtype) {
    if (tensor.sizes().back() <= 1 || tensor.strides().back() == 1) return tensor;
    return contiguous_copy(std::move(tensor), dtype);
}

static bool is_readable(const Tensor& tensor, int64_t bytes) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    const size_t last = sizes.size() - 1;
    if (reinterpret_cast<uintptr_t>(tensor.data()) % 4 || (sizes[last] > 1 && strides[last] != 1))
        return false;
    for (size_t axis = 0; axis < last; ++axis)
        if (sizes[axis] > 1 && strides[axis] * bytes % 4) return false;
    return true;
}

Tensor readable(Tensor tensor, Dtype dtype) {
    if (tensor.element_count() == 0 || is_readable(tensor, bytes_of(dtype))) return tensor;
    return contiguous_copy(std::move(tensor), dtype);
}

RowView::RowView(std::vector<Tensor*> tensors, Dtype dtype) : dtype_(dtype) {
    for (Tensor* tensor : tensors) *tensor = with_unit_stride(std::move(*tensor), dtype);
    if (!collapse(tensors)) {
        for (Tensor* tensor : tensors) *tensor = contiguous_copy(std::move(*tensor), dtype);
        collapse(tensors);
    }
}

bool RowView::aligned(const std::vector<Tensor*>& tensors) const {
    const int64_t unit = 4 / bytes_of(dtype_);
    for (size_t i = 0; i < tensors.size(); ++i) {
        if (reinterpret_cast<uintptr_t>(tensors[i]->data()) % 4) return false;
        for (size_t axis = 0; axis < 3; ++axis)
            if (sizes_[axis] > 1 && strides_[i][axis] % unit) return false;
    }
    return true;
}

bool RowView::collapse(const std::vector<Tensor*>& tensors) {
    strides_.assign(tensors.size(), {0, 0, 0});
    sizes_ = {1, 1, 1};
    const auto sizes = tensors[0]->sizes();
    int used = 0;  // innermost first
    for (size_t axis = sizes.size() - 1; axis-- > 0;) {
        if (sizes[axis] == 1) continue;
        bool continues = used > 0;
        for (size_t i = 0; i < tensors.size() && continues; ++i)
            continues = tensors[i]->strides()[axis] == strides_[i][used - 1] * sizes_[used - 1];
        if (continues) {
            sizes_[used - 1] *= sizes[axis];
            continue;
        }
        if (used == 3) return false;
        sizes_[used] = sizes[axis];
        for (size_t i = 0; i < tensors.size(); ++i) strides_[i][used] = tensors[i]->strides()[axis];
        ++used;
    }
    return true;
}

}  // namespace hipkittens::torch_binding
