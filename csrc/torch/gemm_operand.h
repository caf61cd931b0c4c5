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

// The last two dimensions are read; batches are the caller's.
struct Operand {
    Tensor tensor;
    gemm::Matrix matrix;
};

// Columns of B, which are rows in memory, in panels (kernels/gemm/panels.h): a tensor (..., rows / panel, chunks, panel, elements of 16
// bytes) that is contiguous.
struct Panels {
    int64_t rows, row_elements;
    int panel_rows;
};
// Of a tensor with so many dimensions before those of panels, or nothing where it has two fewer. Throws for panels that no kernel reads.
std::optional<Panels> panels_of(const char* operation, const Tensor& b, int64_t batches, int element_bytes);

// Rows, or columns of the transposed matrix, have unit stride: a tensor in which neither have is copied.
Operand make_operand(Tensor tensor, Dtype dtype);
// The same where only rows, or with `transposed` only columns, will do.
Operand make_operand(Tensor tensor, Dtype dtype, bool transposed);
// The same of codes, a byte each, whose rows (columns) have to begin on 4 bytes.
Operand make_operand_on_dwords(Tensor codes, bool transposed);

}  // namespace hipkittens::torch_binding
