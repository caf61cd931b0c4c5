// kernels/attention/config.h: the compile-time configuration of an attention kernel.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"

namespace hipkittens::attention {

enum class Schedule {
    simple,       // loads the next tile, attends to the current one, barrier
    interleaved,  // interleaves matrix steps, softmax and LDS reads of neighboring chunks of keys
};

// The meaning of the rows of a query tile.
enum class QueryRows {
    of_head,   // the queries of one head
    of_group,  // pairs of a query and a head of a group, ordered by query; they share the loaded keys
};

// Transformation of scaled scores before the softmax (score_terms.h), or in place of it.
enum class ScoreTerms {
    none,
    alibi,    // subtracts the head's slope times the distance of query and key
    softcap,  // softcap x tanh(score / softcap), followed by the slopes as above, which may be 0
    silu,     // silu(score) is the weight of a key, without a softmax (pointwise_weights.h)
};

struct ForwardConfig {
    ElementType input;
    int head_dim;   // of the tiles of Q and K; any smaller multiple of 8 runs with the rest of the row masked
    int value_dim;  // of the tiles of V, likewise
    int waves;
    Schedule schedule;
    QueryRows query_rows;
    ScoreTerms terms;
    bool dropout;  // drops elements of P

    static constexpr int queries_per_wave = 32, keys_per_tile = 64;
    constexpr int queries() const { return waves * queries_per_wave; }  // rows of a workgroup
    // Number of query heads that the rows of a workgroup belong to, for the given group size.
    constexpr int heads_together(int group) const { return query_rows == QueryRows::of_group ? group : 1; }
    constexpr int threads() const { return waves * 64; }
};

inline constexpr int combine_threads = 256, combine_lanes_per_row = 16;

}  // namespace hipkittens::attention
