// kernels/attention/quantized_arguments.h: the arguments of attention with quantized operands, and the format of their rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "arguments.h"

namespace hipkittens::attention {

// Q and K are int8 with one scale per block of rows of a head; V has 8-bit floats with one scale per channel:
//     score = (q k) q_scale[batch, head, query >> q_shift] k_scale[batch, key head, key >> k_shift], base 2
//     out = v_scale[batch, key head, channel] sum 2^(score - lse) v
struct QuantizedArguments {
    TensorArgument q, k;  // strides in pairs of values
    // [batch, key heads, value_dim, value_columns]: a row is a channel, its columns are keys. Strides are in pairs of values;
    // row_stride is the distance between channels.
    TensorArgument v;
    TensorArgument out;  // written
    const float *q_scale, *k_scale, *v_scale;
    int32_t q_blocks, k_blocks;  // per head
    int32_t q_shift, k_shift;
    int32_t value_columns;  // a multiple of 16, n_k or more
    float* lse;             // [batch, heads, n_q], natural logarithm
    Mask mask;
    WorkgroupOrder order;
    int32_t group;                // query heads per key head
    int32_t head_dim, value_dim;  // multiples of 16 and of 8
};

struct QuantizedConfig {
    ElementType element;  // of the result
    int head_dim;         // of the tiles; smaller heads run with the rest of the row masked
    int waves;

    static constexpr int queries_per_wave = 32, keys_per_tile = 64;
    constexpr int queries() const { return waves * queries_per_wave; }  // rows of a workgroup
    constexpr int threads() const { return waves * 64; }
};

}  // namespace hipkittens::attention
