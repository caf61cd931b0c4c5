// kernels/attention/arguments.h: the arguments that the host passes to an attention kernel, by value.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

#include "../workgroup_order.h"

namespace hipkittens::attention {

// A tensor [batch, rows, heads, head_dim] with unit stride along head_dim. Strides are in elements.
struct TensorArgument {
    const void* data;
    int64_t batch_stride, row_stride, head_stride;
};

// Pointer to the row that a kernel writes.
template <class T>
constexpr T* row_of(const TensorArgument& tensor, int64_t batch, auto head, int64_t row) {
    return static_cast<T*>(const_cast<void*>(tensor.data)) + batch * tensor.batch_stride +
           head * tensor.head_stride + row * tensor.row_stride;
}

// Which keys a query sees. The two sequences are aligned at their ends: query i corresponds to key i + n_k - n_q and
// sees `left` keys before that one and `right` keys after it.
struct Mask {
    int32_t n_q, n_k;
    int32_t left, right;

    constexpr int first_key(int query) const {
        const int key = query + (n_k - n_q) - left;
        return key > 0 ? key : 0;
    }
    // -1, or less than first_key, if the query sees nothing.
    constexpr int last_key(int query) const {
        const int key = query + (n_k - n_q) + right;
        return key < n_k - 1 ? key : n_k - 1;
    }
    // The queries that see a key. The range is empty if the last is less than the first.
    constexpr int first_query(int key) const {
        const int query = key - (n_k - n_q) - right;
        return query > 0 ? query : 0;
    }
    constexpr int last_query(int key) const {
        const int query = key - (n_k - n_q) + left;
        return query < n_q - 1 ? query : n_q - 1;
    }
};
// A side without a limit. Adding two lengths below longest_sequence to it stays within 32 bits.
inline constexpr int32_t unlimited = 1 << 30;
inline constexpr int64_t longest_sequence = (1 << 29) - 1;

// Which rows belong to which batch. Packed sequences are consecutive in tensors of batch 1: those of batch b are rows
// first[b] .. first[b+1]-1. The tensors of a padded batch have a batch dimension, and rows mask.n_q and mask.n_k.
struct PackedSequences {
    const int32_t *first_q, *first_k;  // null for a padded batch
    int64_t rows_q;                    // of all sequences together, for the per-query statistics
};

// One batch of a problem: its location in the tensors, and its mask.
template <class SequenceMask>
struct SequenceOf {
    int64_t batch;             // 0 if packed
    int64_t first_q, first_k;  // rows before it; 0 if not packed
    SequenceMask mask;
};
using Sequence = SequenceOf<Mask>;
constexpr Sequence sequence_of(int batch, const Mask& mask, const PackedSequences& packed) {
    if (!packed.first_q) return {batch, 0, 0, mask};
    const int32_t first_q = packed.first_q[batch], first_k = packed.first_k[batch];
    return {
        0,
        first_q,
        first_k,
        {packed.first_q[batch + 1] - first_q, packed.first_k[batch + 1] - first_k, mask.left, mask.right}};
}

// Elements of P are dropped with probability threshold / 2^16; the others are multiplied by scale (dropout.h).
struct Dropout {
    const uint64_t*
        seed;  // two words: the generator's key; the low half of the second is also part of the counter
    uint32_t threshold;
    float scale;
};

// For kernels with score terms (score_terms.h).
struct ScoreTermArguments {
    const float* slopes;  // ALiBi slopes, one per head; or null
    int64_t
        slopes_of_sequence;  // stride from the slopes of one sequence to those of the next; 0: shared by all
    float cap_log2;          // softcap x log2(e)
    float inner_log2;        // 2 x scale / softcap x log2(e), with the sign of the scale unless q carries it
};

// The order in which workgroups take tiles of rows of a head, chosen so that neighbors share data.
struct WorkgroupOrder {
    int32_t tiles, heads, batch;  // tiles: along the rows of one head
    int32_t splits;               // of the rows of the other side, each handled by a workgroup
    int32_t together;      // heads whose tiles alternate: first one tile of each, then the next tile of each
    int32_t descending;    // from the last tile to the first
    uint32_t xcds, chunk;  // chunked_workgroup
};

struct TileCoordinate {
    int tile, head, batch, split;
    uint32_t head_of_all;  // (split x batches + batch) x heads + head
};
// Query heads head x group .. of a group share one key head.
constexpr int key_head_of(int query_head, int group) {
    return static_cast<int>(static_cast<uint32_t>(query_head) / static_cast<uint32_t>(group));
}
constexpr TileCoordinate coordinate_of_head(uint32_t head_of_all, const WorkgroupOrder& order) {
    const uint32_t heads = order.heads, batch = order.batch, of_batch = head_of_all / heads;
    return {0, static_cast<int>(head_of_all % heads), static_cast<int>(of_batch % batch),
            static_cast<int>(of_batch / batch), head_of_all};
}

// Tiles of one head are consecutive, and heads that share keys stay on one XCD. Under a causal mask, the work of a tile grows
// or shrinks with its index: the tiles of as many heads as fill an XCD are then taken from longest to shortest, so that the
// short ones fill the gaps left by the long ones.
constexpr TileCoordinate coordinate_of_workgroup(uint32_t workgroup, const WorkgroupOrder& order) {
    const uint32_t tiles = order.tiles, count = tiles * order.heads * order.batch * order.splits;
    const uint32_t index = chunked_workgroup(workgroup, count, order.xcds, order.chunk);
    uint32_t tile = index % tiles, head_of_all = index / tiles;
    if (order.together > 1) {
        const uint32_t together = order.together, inside = index % (together * tiles);
        head_of_all = index / (together * tiles) * together + inside % together;
        tile = inside / together;
    }
    TileCoordinate coordinate = coordinate_of_head(head_of_all, order);
    coordinate.tile = static_cast<int>(order.descending ? tiles - 1 - tile : tile);
    return coordinate;
}

struct ForwardArguments {
    TensorArgument q, k, v, out;  // out is written
    // [batch, heads, n_q], or [heads, rows_q] for packed sequences; natural logarithm, without sinks.
    float* lse;
    // If order.splits > 1, replaces out and lse: per split, the normalized rows [split, (as lse), value_dim] and their lse.
    float *partial_out, *partial_lse;
    Mask mask;
    PackedSequences packed;
    WorkgroupOrder order;
    int32_t group;  // query heads per key head
    int32_t head_dim, value_dim;
    float scale_log2;  // |scale| x log2(e); positive
    int32_t negated;   // the sign of the scale, which is applied to q
    const float*
        sinks;  // score of one additional key per head, which has no value; null (also with several splits): none
    Dropout dropout;  // for kernels with dropout
    ScoreTermArguments terms;
};
constexpr Sequence sequence_of(int batch, const ForwardArguments& arguments) {
    return sequence_of(batch, arguments.mask, arguments.packed);
}

// The kernel that combines the splits; 16 lanes process one row of one head.
struct CombineArguments {
    const float *partial_out, *partial_lse;
    TensorArgument out;
    float* lse;
    int64_t rows;           // of all heads and batches
    int64_t rows_per_head;  // n_q, or rows_q for packed sequences
    int32_t heads, splits, value_dim;
    const float* sinks;  // per head; or null
};

}  // namespace hipkittens::attention
