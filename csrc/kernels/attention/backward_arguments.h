// kernels/attention/backward_arguments.h: the arguments that the host passes to the kernels of the attention backward, by value.
// SPDX-License-Identifier: MIT
#pragma once
#include "arguments.h"

namespace hipkittens::attention {

// Which gradients a kernel accumulates: all of them or, for large heads, those of one side, which fit in the registers
// together with the rows themselves.
enum class GradientTarget { keys, values, queries, one_pass };

// Rows of statistics come in whole blocks of this many queries; blocks of keys have the same size.
inline constexpr int statistics_block = 64;

// Precomputed per-query statistics. A block stores all values of the first kind, then all of the second, and so on.
enum class Statistic {
    start,  // -LSE, base 2, including the sink: the offset of the exponents. no_start without keys or past the last query
    delta,     // dLSE - sum(dO O): added to dP
    norm,      // norm of its row of dO, times the sum of P, which is less than 1 with a sink
    dq_delta,  // the same for |delta|: with the norm, it bounds dQ
    count,
};
// Of a block.
inline constexpr int statistics_bytes = static_cast<int>(Statistic::count) * statistics_block * 4;
inline constexpr float no_start = -__builtin_inff();  // makes P zero
constexpr int64_t statistic_index(Statistic statistic, int64_t row) {
    constexpr uint64_t block = statistics_block, kinds = static_cast<uint64_t>(Statistic::count);
    // A signed quotient rounds towards zero, which takes more instructions.
    const auto from_zero = static_cast<uint64_t>(row);
    return static_cast<int64_t>((from_zero / block * kinds + static_cast<uint64_t>(statistic)) * block +
                                from_zero % block);
}

// The statistics of a sequence begin and end on whole blocks. Sequence b of a packed batch begins at this row: blocks never
// overlap, since rounding up grows a length by less than one block.
constexpr int64_t statistics_row(int64_t first, int batch) {
    return (first / statistics_block + batch) * statistics_block;
}

// Arguments of all kernels of the backward; each kernel has its own order of workgroups.
struct BackwardArguments {
    TensorArgument q, k, v, out, grad_out;
    TensorArgument grad_q, grad_k, grad_v;  // written
    const float* lse;       // [batch, heads, n_q], or [heads, rows_q] for packed sequences; without sinks
    const float* grad_lse;  // the same, or null
    float* statistics;      // per head, `statistics_rows` rows
    // Per head, or null: sinks, their gradients, and the contribution of each statistics block to these gradients.
    const float* sinks;
    float *grad_sinks, *sink_partials;
    // For kernels that accumulate dQ in memory; otherwise null. Per head, `statistics_rows` rows as wide as the kernel's
    // tiles; per key head, the bounds of `blocks_per_key_head` blocks (dq_accumulator.h).
    int32_t* dq_accumulator;
    float* key_bounds;
    // If a group's query heads are split, with one workgroup per split (split_partials.h).
    float* split_partials;
    int64_t floats_per_split;
    Mask mask;
    PackedSequences packed;
    WorkgroupOrder order;             // of the rows whose gradients a kernel computes
    int32_t heads, group;             // heads of the queries; query heads per key head
    int32_t heads_per_split, splits;  // of a group; other kernels have one split with all heads
    // For the one-pass kernel: a tile of keys processes the same queries of all heads before the next queries; and of
    // every 2 x turn workgroups, the first half takes queries from the last to the first. turn = 0: none does.
    int32_t heads_inside;
    uint32_t turn;
    int32_t head_dim, value_dim;
    int32_t statistics_rows, blocks_per_key_head;
    int32_t dq_width;         // columns of the accumulator
    int32_t key_tiles;        // blocks of keys of the longest sequence
    float scale, scale_log2;  // scale_log2 is not 0
    Dropout dropout;          // for kernels with dropout
    ScoreTermArguments terms;
};
constexpr Sequence sequence_of(int batch, const BackwardArguments& arguments) {
    return sequence_of(batch, arguments.mask, arguments.packed);
}

// The row at which the statistics of a query head begin, for this sequence.
constexpr int64_t first_statistics_row(const BackwardArguments& arguments, const Sequence& sequence,
                                       int batch, int head) {
    return (sequence.batch * arguments.heads + head) * arguments.statistics_rows +
           (arguments.packed.first_q ? statistics_row(sequence.first_q, batch) : 0);
}

}  // namespace hipkittens::attention
