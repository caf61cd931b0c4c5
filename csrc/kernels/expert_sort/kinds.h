// kernels/expert_sort/kinds.h: what is passed to a sort of pairs of token and expert, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

#include "../row.h"

namespace hipkittens::expert_sort {

inline constexpr int waves = 8, threads = waves * 64;
// Ten counts of each expert are in LDS: 60 KB.
inline constexpr int most_experts = 1536;
// Of a token the number in its lower bits, of its choice the rest.
inline constexpr int packed_token_bits = 24;

// Pair i is choice i % k of token i / k. Its place is behind those of lower experts, and behind the earlier pairs of its own
// expert; every expert begins at a multiple of `block`. Pairs without an expert have no place.
struct SortArguments {
    const int32_t* ids;         // of each pair
    const int32_t* expert_map;  // what to take for each id below mapped_ids, or null: itself
    const float* weights;       // of each pair, or null

    int32_t*
        entries;  // [capacity]: the pair of each place, or its token and choice; `padding` where there is none
    float* sorted_weights;    // [capacity], 0 where there is no pair; or null
    int32_t* block_experts;   // [blocks], -1 behind the last; or null
    int32_t* tokens_left;     // [blocks]: pairs of the block's expert from the block on
    int32_t* offsets;         // [experts + 1]: the first place of each, and the place past the last
    int32_t* num_valid;       // [2]: that place, and the tokens
    int32_t* places;          // of each pair, -1 without an expert
    int32_t* segment_counts;  // [segments][experts], then all together; of one segment null

    uint32_t pairs, k, experts, mapped_ids;
    uint32_t block, blocks, capacity;
    uint32_t packed;
    int32_t padding;
    uint32_t segments, wave_pairs;  // a segment has `waves` times as many pairs
    uint32_t workgroups;            // that move pairs
    uint32_t id_bits;               // that tell experts apart
    uint32_t unused;                // named, so that the bytes of the same launch are the same
};

// All in one launch; or a workgroup counts each segment, one adds the counts up, and a workgroup moves each segment.
template <NoConfig config>
struct SortAll;
template <NoConfig config>
struct CountSegment;
template <NoConfig config>
struct AddCounts;
template <NoConfig config>
struct MoveSegment;

namespace kinds {

struct sort_all : Kind<NoConfig, SortArguments, SortAll> {};
struct count_segment : Kind<NoConfig, SortArguments, CountSegment> {};
struct add_counts : Kind<NoConfig, SortArguments, AddCounts> {};
struct move_segment : Kind<NoConfig, SortArguments, MoveSegment> {};

}  // namespace kinds

inline constexpr auto each_row = [](const auto& visit) {
#include "variants.def"
};
template <class Kind>
inline constexpr auto& variants = rows_of<Kind, each_row>;

}  // namespace hipkittens::expert_sort
