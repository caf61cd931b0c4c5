// kernels/paged_attention/plan.h: plans the launches of attention over a paged cache.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <vector>

#include "../device_shape.h"
#include "../launch.h"
#include "kinds.h"

namespace hipkittens::paged_attention {

// Splits of all sequences together, if a plan gives the number for each.
inline constexpr int64_t most_planned = 1 << 16;

struct Problem {
    DeviceShape device;
    ElementType element, cache;
    CacheScaling scaling;
    int64_t sequences, most_queries, tokens, heads, key_heads, head_dim, value_dim;
    int64_t page, most_pages;  // keys per page, and pages per row of the table
    int64_t left, right;       // negative: unlimited
    int64_t num_splits;        // 0: chosen here
    bool grouped;
    bool planned;  // num_splits counts the splits of all sequences together
};

struct Choice {
    const char* variant;
    PagedConfig config;
    int64_t row_tiles;  // of one key head of the longest sequence
    int64_t splits;
    int32_t shortest_split;
};

// Both throw std::invalid_argument if no kernel supports the problem.
Choice choose(const Problem& problem);
// Tensors, sequences, scale, softcap, slopes and sinks are set by the caller; the rest is set here. Partial results, with more
// than one split: [splits, tokens, heads, value_dim] and [splits, tokens, heads].
std::vector<Launch> plan(const Problem& problem, const Choice& choice, PagedArguments arguments);

// For rows of `head_dim`, a multiple of merge_columns; threads_per_row is set here. Throws std::invalid_argument.
Launch plan_merge(int target, ElementType element, MergeArguments arguments);

}  // namespace hipkittens::paged_attention
