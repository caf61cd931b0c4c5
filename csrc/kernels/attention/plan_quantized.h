// kernels/attention/plan_quantized.h: plans the launch of attention with quantized operands.
// SPDX-License-Identifier: MIT
#pragma once
#include "kinds.h"
#include "plan.h"

namespace hipkittens::attention {

// Blocks of rows that share a scale are powers of two, and no smaller than the queries of a wave and a tile of keys.
inline constexpr int64_t shortest_query_block = QuantizedConfig::queries_per_wave,
                         shortest_key_block = QuantizedConfig::keys_per_tile;
// The columns of V are a multiple of this, the number per load.
inline constexpr int64_t value_columns_step = 16;

// Of `shared`, the sizes, causal and the windows are used, and the element type, which is that of the result.
struct QuantizedProblem {
    Problem shared;
    // Strides in bytes, for v as in QuantizedArguments; for out, in elements.
    TensorLayout q, k, v, out;
    const float *q_scale = nullptr, *k_scale = nullptr, *v_scale = nullptr;
    int64_t query_block = 0, key_block = 0, value_columns = 0;
    float* lse = nullptr;
};

inline int64_t blocks_of(int64_t rows, int64_t block) { return (rows + block - 1) / block; }

// Throws std::invalid_argument.
Launch plan_quantized_forward(const QuantizedProblem& problem);

}  // namespace hipkittens::attention
