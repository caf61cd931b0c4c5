// kernels/attention/backward_arguments.h: what the host hands to the kernels of attention's gradients, by value.
// SPDX-License-Identifier: MIT
#pragma once
#include "arguments.h"

namespace hipkittens::attention {

// Whose gradients a kernel adds up. Those of keys and values share their weights, but do not fit in the registers together
// with the rows themselves when heads are large.
enum class Owner { keys_and_values, keys, values, queries };

// Rows of the statistics come in whole blocks of this many queries.
inline constexpr int statistics_block = 64;

// Statistics of a sequence begin on a whole block, and end with one. Sequence b of a packed batch begins at this row: blocks
// never overlap, since a length grows by less than one block when rounded up.
constexpr int64_t statistics_row(int64_t first_q, int batch) {
    return (first_q / statistics_block + batch) * statistics_block;
}

// All kernels of the backward take this; each has its own order of workgroups.
struct BackwardArguments {
    TensorArgument q, k, v, out, grad_out;
    TensorArgument grad_q, grad_k, grad_v;  // written
    const float* lse;                       // [batch, heads, n_q], or [heads, rows_q] of packed sequences
    const float* grad_lse;                  // the same, or null
    // Per head `statistics_rows` values each: the LSE in base 2, and delta = sum(dO O) - dLSE. A query without keys, or
    // beyond the last, has an LSE of +inf there: all its weights are then 0.
    float *lse_log2, *delta;
    Mask mask;
    PackedSequences packed;
    WorkgroupOrder order;  // of the kernel's own rows
    int32_t heads, group;  // of the queries; query heads per key head
    int32_t head_dim;
    int32_t statistics_rows;
    float scale, scale_log2;
    Dropout dropout;  // of kernels that drop
};

}  // namespace hipkittens::attention
