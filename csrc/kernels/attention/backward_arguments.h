// kernels/attention/backward_arguments.h: what the host hands to the kernels of attention's gradients, by value.
// SPDX-License-Identifier: MIT
#pragma once
#include "arguments.h"

namespace hipkittens::attention {

// Whose gradients a kernel adds up: all of them, or where heads are large those of one side, which fit in the registers
// together with the rows themselves.
enum class GradientTarget { keys, values, queries, one_pass };

// Rows of the statistics come in whole blocks of this many queries, blocks of keys have as many.
inline constexpr int statistics_block = 64;

// What is known of a query before its scores are; a block has all of the first, then all of the second, and so on.
enum class Statistic {
    start,  // -LSE, base 2, with the sink: where its exponents start. Without keys, or beyond the last query, no_start
    delta,     // dLSE - sum(dO O): what dP is added to
    norm,      // of its row of dO, times the sum of P: less than 1 where there is a sink
    dq_delta,  // the same of |delta|: with the norm, what bounds dQ
    count,
};
inline constexpr float no_start = -__builtin_inff();  // makes P 0
constexpr int64_t statistic_index(Statistic statistic, int64_t row) {
    constexpr uint64_t block = statistics_block, kinds = static_cast<uint64_t>(Statistic::count);
    // A signed quotient is rounded towards zero, which takes more instructions.
    const auto from_zero = static_cast<uint64_t>(row);
    return static_cast<int64_t>((from_zero / block * kinds + static_cast<uint64_t>(statistic)) * block +
                                from_zero % block);
}

// Statistics of a sequence begin on a whole block, and end with one. Sequence b of a packed batch begins at this row: blocks
// never overlap, since a length grows by less than one block when rounded up.
constexpr int64_t statistics_row(int64_t first, int batch) {
    return (first / statistics_block + batch) * statistics_block;
}

// All kernels of the backward take this; each has its own order of workgroups.
struct BackwardArguments {
    TensorArgument q, k, v, out, grad_out;
    TensorArgument grad_q, grad_k, grad_v;  // written
    const float* lse;       // [batch, heads, n_q], or [heads, rows_q] of packed sequences; without sinks
    const float* grad_lse;  // the same, or null
    float* statistics;      // per head those of `statistics_rows` rows
    // Of heads, or null: sinks and their gradients, and the part of these that each block of the statistics adds.
    const float* sinks;
    float *grad_sinks, *sink_partials;
    // Of kernels that add up dQ in memory; else null. Per head `statistics_rows` rows as wide as the kernel's tiles; per key
    // head the bounds of `blocks_per_key_head` blocks (dq_accumulator.h).
    int32_t* dq_accumulator;
    float* key_bounds;
    // Where a group's query heads are split, each split a workgroup's (split_partials.h).
    float* split_partials;
    int64_t floats_per_split;
    Mask mask;
    PackedSequences packed;
    WorkgroupOrder order;             // of the rows whose gradients a kernel makes
    int32_t heads, group;             // of the queries; query heads per key head
    int32_t heads_per_split, splits;  // of a group; one split of all heads in other kernels
    // Of the one pass. A tile of keys meets the same queries of all heads before the next queries; and of each 2 x turn
    // workgroups, the first ones take queries from the last to the first. 0: none do.
    int32_t heads_inside;
    uint32_t turn;
    int32_t head_dim, value_dim;
    int32_t statistics_rows, blocks_per_key_head;
    int32_t dq_width;         // columns of the accumulator
    int32_t key_tiles;        // blocks of keys of the longest sequence
    float scale, scale_log2;  // scale_log2 is not 0
    Dropout dropout;          // of kernels that drop
    ScoreTermArguments terms;
};
constexpr Sequence sequence_of(int batch, const BackwardArguments& arguments) {
    return sequence_of(batch, arguments.mask, arguments.packed);
}

// The row of the statistics at which those of a head of the queries begin, for this sequence.
constexpr int64_t first_statistics_row(const BackwardArguments& arguments, const Sequence& sequence,
                                       int batch, int head) {
    return (sequence.batch * arguments.heads + head) * arguments.statistics_rows +
           (arguments.packed.first_q ? statistics_row(sequence.first_q, batch) : 0);
}

}  // namespace hipkittens::attention
