// kernels/expert_sort/kinds.h: the arguments of a sort of (token, expert) pairs, and the kinds of rows in variants.def.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

#include "../row.h"

namespace hipkittens::expert_sort {

inline constexpr int waves = 8, threads = waves * 64;
// Ten counts per expert are in LDS: 60 KB.
inline constexpr int most_experts = 1536;
// The token index is in the lower bits, the index of its choice in the others.
inline constexpr int packed_token_bits = 24;

// Pair i is choice i % k of token i / k. Its place is after those of lower experts, and after the earlier pairs of its own
// expert; every expert begins at a multiple of `block`. Pairs without an expert have no place.
struct SortArguments {
    const int32_t* ids;         // per pair
    const int32_t* expert_map;  // the local expert for each id below mapped_ids, or null: the id itself
    const float* weights;       // per pair, or null

    int32_t*
        entries;  // [capacity]: the pair of each place, or its token and choice; `padding` where there is none
    float* sorted_weights;    // [capacity], 0 where there is no pair; or null
    int32_t* block_experts;   // [blocks], -1 past the last; or null
    int32_t* tokens_left;     // [blocks]: pairs of the block's expert from this block on
    int32_t* offsets;         // [experts + 1]: the first place of each, and the place past the last
    int32_t* num_valid;       // [2]: the place past the last, and the number of tokens
    int32_t* places;          // per pair, -1 without an expert
    int32_t* segment_counts;  // [segments][experts], then the totals; null with one segment

    uint32_t pairs, k, experts, mapped_ids;
    uint32_t block, blocks, capacity;
    uint32_t packed;
    int32_t padding;
    uint32_t segments, wave_pairs;  // a segment has `waves` times as many pairs
    uint32_t workgroups;            // number that move pairs
    uint32_t id_bits;               // number of bits that distinguish experts
    uint32_t unused;                // named, so that the argument bytes of equal launches are equal
};

// Either a single launch does everything; or a workgroup counts each segment, one adds up the counts, and a workgroup moves each segment.
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
