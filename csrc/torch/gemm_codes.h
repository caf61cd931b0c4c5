// torch/gemm_codes.h: the numbers by which operators receive the formats and scalings of quantized operands.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "kernels/element_type.h"
#include "torch/tensor.h"

namespace hipkittens::torch_binding {

// Numbers as in hipkittens/scaled_gemm.py. `operation` and `name` are the operator's and the argument's, for
// messages.
ElementType code_format(const char* operation, const char* name, int64_t number);

// Number of values in rows of `bytes` bytes; 128 values of 6 bits are never split.
int64_t codes_in(const char* operation, const char* name, ElementType type, int64_t bytes);

// Values of torch.nn.functional.ScalingType.
enum Scaling : int64_t { tensor_wise = 0, row_wise = 1, mx_wise = 3, row_block_wise = 4, block_wise = 5 };

constexpr bool is_block_wise(int64_t scaling) { return scaling == row_block_wise || scaling == block_wise; }

// Bytes of 32 rows of e8m0 factors, one per 32 of K, stored in blocks of 8 columns
// (kernels/gemm/step_scales.h).
constexpr int64_t mx_band_bytes(int64_t k) { return (k / 32 + 7) / 8 * 256; }

// Throws if the tensor has fewer than `wanted` contiguous bytes of such factors.
void check_mx_scale(const char* operation, const char* name, const Tensor& scale, int64_t wanted);

}  // namespace hipkittens::torch_binding
