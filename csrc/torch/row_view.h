// torch/row_view.h: tensors as rows of their last dimension, without copies where strides allow it.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <vector>

#include "kernels/strided_rows.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

Tensor contiguous_copy(Tensor tensor, Dtype dtype);
// Copies the tensor if its last dimension has gaps.
Tensor with_unit_stride(Tensor tensor, Dtype dtype);
// Also copies it if rows do not begin on 4 bytes: kernels read 16 bytes at a time.
Tensor readable(Tensor tensor, Dtype dtype);

// Tensors with the same leading dimensions. Adjacent dimensions that every tensor traverses with one stride
// are merged; if more than three remain, or a row has no unit stride, the tensors are copied first.
class RowView {
  public:
    RowView(std::vector<Tensor*> tensors, Dtype dtype);

    Dtype dtype() const { return dtype_; }
    // Both innermost first.
    const std::array<int64_t, 3>& sizes() const { return sizes_; }
    const std::array<int64_t, 3>& strides(size_t position) const { return strides_[position]; }
    // In the form passed to kernels.
    RowCounts counts() const {
        return {static_cast<uint32_t>(sizes_[0] * sizes_[1] * sizes_[2]), static_cast<uint32_t>(sizes_[1]),
                static_cast<uint32_t>(sizes_[0])};
    }
    StridedRows rows(const Tensor& tensor, size_t position) const {
        const auto& strides = strides_[position];
        return {tensor.data(), strides[2], strides[1], strides[0]};
    }
    // Whether rows begin on 4 bytes in all tensors.
    bool aligned(const std::vector<Tensor*>& tensors) const;

  private:
    bool collapse(const std::vector<Tensor*>& tensors);

    Dtype dtype_;
    std::array<int64_t, 3> sizes_;
    std::vector<std::array<int64_t, 3>> strides_;
};

}  // namespace hipkittens::torch_binding
