// kernels/attention/arguments.h: what the host hands to an attention kernel, by value.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

#include "../workgroup_order.h"

namespace hipkittens::attention {

enum class ElementType : int32_t { bf16, f16 };

// A tensor [batch, rows, heads, head_dim] with unit stride along head_dim. Strides in elements.
struct TensorArgument {
    const void* data;
    int64_t batch_stride, row_stride, head_stride;
};

// Which keys a query sees. Both sequences end together: query i stands at key i + n_k - n_q and sees `left` keys
// before that place and `right` keys after it.
struct Mask {
    int32_t n_q, n_k;
    int32_t left, right;

    constexpr int first_key(int query) const {
        const int key = query + (n_k - n_q) - left;
        return key > 0 ? key : 0;
    }
    // -1 or less than first_key: the query sees nothing.
    constexpr int last_key(int query) const {
        const int key = query + (n_k - n_q) + right;
        return key < n_k - 1 ? key : n_k - 1;
    }
    // The queries that see a key. Empty when the last is less than the first.
    constexpr int first_query(int key) const {
        const int query = key - (n_k - n_q) - right;
        return query > 0 ? query : 0;
    }
    constexpr int last_query(int key) const {
        const int query = key - (n_k - n_q) + left;
        return query < n_q - 1 ? query : n_q - 1;
    }
};
// A side without a limit. Sums with two lengths below longest_sequence stay in 32 bits.
inline constexpr int32_t unlimited = 1 << 30;
inline constexpr int64_t longest_sequence = (1 << 29) - 1;

struct ForwardArguments {
    TensorArgument q, k, v, out;  // out is written
    float* lse;                   // [batch, heads, n_q]; natural logarithm
    Mask mask;
    int32_t batch, heads, group;  // query heads per key head
    int32_t head_dim;
    int32_t tiles_q;       // workgroups along the queries of one head
    int32_t balanced;      // long and short tiles alternate
    uint32_t xcds, chunk;  // chunked_workgroup
    float scale_log2;      // |scale| x log2(e); positive
    int32_t negated;       // the scale's sign, which goes into q
};

// The tile of queries that a workgroup takes.
struct ForwardPlace {
    int tile, head, batch;
};

// Tiles of one head follow each other, heads that share keys stay on one XCD. Under a causal mask a tile's work grows
// with its number: the longest and the shortest alternate, so that neighbours add up to the same.
constexpr ForwardPlace place_of_workgroup(uint32_t workgroup, const ForwardArguments& arguments) {
    const uint32_t tiles = arguments.tiles_q, heads = arguments.heads;
    const uint32_t index =
        chunked_workgroup(workgroup, tiles * heads * arguments.batch, arguments.xcds, arguments.chunk);
    uint32_t tile = index % tiles;
    if (arguments.balanced) tile = tile % 2 ? tile / 2 : tiles - 1 - tile / 2;
    const uint32_t rest = index / tiles;
    return {static_cast<int>(tile), static_cast<int>(rest % heads), static_cast<int>(rest / heads)};
}

}  // namespace hipkittens::attention
