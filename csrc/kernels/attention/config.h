// kernels/attention/config.h: what is fixed when an attention kernel is compiled.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_type.h"

namespace hipkittens::attention {

enum class Schedule {
    simple,       // load the next tile, attend to this one, barrier
    interleaved,  // matrix steps, softmax and LDS reads of neighbouring chunks of keys side by side
};

// What the rows of a tile of queries are.
enum class QueryRows {
    of_head,   // the queries of one head
    of_group,  // pairs of a query and a head of a group, query by query: they share the keys that are loaded
};

// What becomes of scaled scores before the softmax (score_terms.h), or in place of it.
enum class ScoreTerms {
    none,
    alibi,    // less a head's slope times the distance of query and key
    softcap,  // softcap x tanh(score / softcap), and then as above with slopes that may be 0
    silu,     // silu(score) is the weight of a key, without a softmax (pointwise_weights.h)
};

struct ForwardConfig {
    ElementType input;
    int head_dim;  // of the tiles of Q and K; any smaller one that is a multiple of 8 runs with the rest of a row masked
    int value_dim;  // of those of V, likewise
    int waves;
    Schedule schedule;
    QueryRows query_rows;
    ScoreTerms terms;
    bool dropout;  // drops elements of P

    static constexpr int queries_per_wave = 32, keys_per_tile = 64;
    constexpr int queries() const { return waves * queries_per_wave; }  // rows of a workgroup
    // Query heads that a workgroup's rows belong to, of groups of so many.
    constexpr int heads_together(int group) const { return query_rows == QueryRows::of_group ? group : 1; }
    constexpr int threads() const { return waves * 64; }
    constexpr int waves_per_simd() const { return schedule == Schedule::simple ? waves / 4 : 2; }
};

inline constexpr int combine_threads = 256, combine_lanes_per_row = 16;

}  // namespace hipkittens::attention
