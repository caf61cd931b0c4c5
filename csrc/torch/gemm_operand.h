// torch/gemm_operand.h: a tensor as the matrices that GEMM kernels read.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>
#include <string>

#include "kernels/gemm/plan.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

std::string shape_text(std::span<const int64_t> sizes);

// Describes the last two dimensions; batches are up to the caller.
struct Operand {
    Tensor tensor;
    gemm::Matrix matrix;
};

// The columns of B, which are rows in memory, in preshuffled panels (kernels/gemm/panels.h): a contiguous
// tensor (..., rows / panel, chunks, panel, elements of 16 bytes).
struct Panels {
    int64_t rows, row_elements;
    int panel_rows;
};
// The panels of a tensor with `batches` leading dimensions, or nothing if it has two dimensions fewer. Throws
// for panels that no kernel reads.
std::optional<Panels> panels_of(const char* operation, const Tensor& b, int64_t batches, int element_bytes);

// Rows, or columns of the transposed matrix, have unit stride; a tensor in which neither have is copied.
Operand make_operand(Tensor tensor, Dtype dtype);
// The same where only rows, or with `transposed` only columns, are supported.
Operand make_operand(Tensor tensor, Dtype dtype, bool transposed);
// The same where rows (columns) must also begin on 4 bytes.
Operand make_operand_on_dwords(Tensor tensor, Dtype dtype, bool transposed);

}  // namespace hipkittens::torch_binding
