// kernels/attention/quantized_arguments.h: what is passed to attention of quantised operands, and what its rows are made of.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"
#include "arguments.h"

namespace hipkittens::attention {

// int8 codes of Q and K, of which blocks of rows of a head share a factor, and 8-bit floats of V, of which channels do:
//     score = (q k) q_scale[batch, head, query >> q_shift] k_scale[batch, key head, key >> k_shift], base 2
//     out = v_scale[batch, key head, channel] sum 2^(score - lse) v
struct QuantizedArguments {
    TensorArgument q, k;  // strides in pairs of codes
    // [batch, key heads, value_dim, value_columns]: a row is a channel, its columns are keys. Strides in pairs of codes; row_stride is
    // from channel to channel.
    TensorArgument v;
    TensorArgument out;  // written
    const float *q_scale, *k_scale, *v_scale;
    int32_t q_blocks, k_blocks;  // of a head
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
    int head_dim;         // of the tiles; smaller heads run with the rest of a row masked
    int waves;

    static constexpr int queries_per_wave = 32, keys_per_tile = 64;
    constexpr int queries() const { return waves * queries_per_wave; }  // rows of a workgroup
    constexpr int threads() const { return waves * 64; }
};

}  // namespace hipkittens::attention
