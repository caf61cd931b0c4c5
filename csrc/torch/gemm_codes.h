// torch/gemm_codes.h: what the bytes of quantised operands are and how they are scaled, as operators are told by number.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "kernels/element_type.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

// Numbers of hipkittens/scaled_gemm.py. `operation` and `name` are the operator's and the argument's, for messages.
ElementType code_format(const char* operation, const char* name, int64_t number);

// In rows of so many bytes; 128 codes of 6 bits are never cut.
int64_t codes_in(const char* operation, const char* name, ElementType type, int64_t bytes);

// As torch.nn.functional.ScalingType has them.
enum Scaling : int64_t { tensor_wise = 0, row_wise = 1, mx_wise = 3, row_block_wise = 4, block_wise = 5 };

constexpr bool is_block_wise(int64_t scaling) { return scaling == row_block_wise || scaling == block_wise; }

// Bytes of 32 rows of e8m0 factors of 32 of K, whose blocks have 8 columns (kernels/gemm/step_scales.h).
constexpr int64_t mx_band_bytes(int64_t k) { return (k / 32 + 7) / 8 * 256; }

// Refuses what has fewer than `wanted` bytes of such factors behind each other.
void check_mx_scale(const char* operation, const char* name, const Tensor& scale, int64_t wanted);

}  // namespace hipkittens::torch_binding
