// torch/gemm_operand.cpp: the strides that the kernels can read, and copies of tensors with other strides.
// SPDX-License-Identifier: MIT
#include "torch/gemm_operand.h"

#include <utility>

#include "torch/registration.h"

namespace hipkittens::torch_binding {
namespace {

// Requires unit stride along rows, or with `transposed` along columns.
bool describe(const Tensor& tensor, bool transposed, gemm::Matrix& matrix) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    const size_t last = sizes.size() - 1, along = transposed ? last - 1 : last,
                 across = transposed ? last : last - 1;
    if ((sizes[along] != 1 && strides[along] != 1) || (sizes[across] != 1 && strides[across] < sizes[along]))
        return false;
    matrix.transposed = transposed;
    matrix.leading_stride = strides[across];
    matrix.data = tensor.data();
    return true;
}

// Whether rows, or with `transposed` columns, begin on dwords.
bool begin_on_dwords(const Tensor& tensor, Dtype dtype, bool transposed) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    const size_t along = sizes.size() - (transposed ? 2 : 1);
    bool aligned = reinterpret_cast<uintptr_t>(tensor.data()) % 4 == 0;
    for (size_t axis = 0; axis < sizes.size(); ++axis)
        if (axis != along && sizes[axis] > 1) aligned = aligned && strides[axis] * bytes_of(dtype) % 4 == 0;
    return aligned;
}

Operand copied(const Tensor& tensor, Dtype dtype, bool transposed) {
    Operand operand{Tensor::empty(tensor.sizes(), dtype, tensor.device(), transposed), {}};
    operand.tensor.copy_from(tensor);
    describe(operand.tensor, transposed, operand.matrix);
    return operand;
}

}  // namespace

std::string shape_text(std::span<const int64_t> sizes) {
    std::string text = "(";
    for (const int64_t size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
    return text + ")";
}

std::optional<Panels> panels_of(const char* operation, const Tensor& b, int64_t batches, int element_bytes) {
    if (b.dimensions() != batches + 4) return {};
    const auto sizes = b.sizes().subspan(static_cast<size_t>(batches));
    if ((sizes[2] != 16 && sizes[2] != 32) || sizes[3] * element_bytes != 16 || !b.is_contiguous())
        fail(std::string(operation) + ": b is " + shape_text(b.sizes()) +
             "; panels are contiguous, (rows / panel, chunks, panel, elements of 16 bytes), with a panel of "
             "16 or 32 rows");
    return Panels{sizes[0] * sizes[2], sizes[1] * sizes[3], static_cast<int>(sizes[2])};
}

Operand make_operand(Tensor tensor, Dtype dtype) {
    gemm::Matrix matrix;
    if (describe(tensor, false, matrix) || describe(tensor, true, matrix)) return {std::move(tensor), matrix};
    return copied(tensor, dtype, false);
}

Operand make_operand(Tensor tensor, Dtype dtype, bool transposed) {
    gemm::Matrix matrix;
    if (describe(tensor, transposed, matrix)) return {std::move(tensor), matrix};
    return copied(tensor, dtype, transposed);
}

Operand make_operand_on_dwords(Tensor tensor, Dtype dtype, bool transposed) {
    Operand operand = make_operand(std::move(tensor), dtype, transposed);
    if (begin_on_dwords(operand.tensor, dtype, transposed)) return operand;
    return copied(operand.tensor, dtype, transposed);
}

}  // namespace hipkittens::torch_binding
