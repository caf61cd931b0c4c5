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

// All three kernels take this; each has its own order of workgroups.
struct BackwardArguments {
    TensorArgument q, k, v, out, grad_out;
    TensorArgument grad_q, grad_k, grad_v;  // written
    const float* lse;                       // [batch, heads, n_q]; natural logarithm
    const float* grad_lse;                  // the same, or null
    // Per head `statistics_rows` values each: the LSE in base 2, and delta = sum(dO O) - dLSE. A query without keys, or
    // beyond the last, has an LSE of +inf there: all its weights are then 0.
    float *lse_log2, *delta;
    Mask mask;
    int32_t batch, heads, group;  // query heads per key head
    int32_t head_dim;
    int32_t statistics_rows;
    int32_t tiles, owner_heads;  // workgroups along the rows of one head; heads
    int32_t balanced;            // long and short tiles alternate
    uint32_t xcds, chunk;        // chunked_workgroup
    float scale, scale_log2;
};

struct BackwardPlace {
    int tile, head, batch;
};

// As in forward: under a causal mask work grows or shrinks with the tile's number.
constexpr BackwardPlace place_of_workgroup(uint32_t workgroup, const BackwardArguments& arguments) {
    const uint32_t tiles = arguments.tiles, heads = arguments.owner_heads;
    const uint32_t index =
        chunked_workgroup(workgroup, tiles * heads * arguments.batch, arguments.xcds, arguments.chunk);
    uint32_t tile = index % tiles;
    if (arguments.balanced) tile = tile % 2 ? tile / 2 : tiles - 1 - tile / 2;
    const uint32_t rest = index / tiles;
    return {static_cast<int>(tile), static_cast<int>(rest % heads), static_cast<int>(rest / heads)};
}

}  // namespace hipkittens::attention
