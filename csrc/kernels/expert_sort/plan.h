// kernels/expert_sort/plan.h: plans the launches of a sort from its arguments.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::expert_sort {

// Number of entries that fits the places for any choice of experts. A pair is in one expert, so at most `pairs` experts are padded.
inline int64_t capacity(int64_t pairs, int64_t experts, int64_t block) {
    return (pairs + std::min(pairs, experts) * (block - 1) + block - 1) / block * block;
}

// Throws std::invalid_argument.
inline void check(int64_t tokens, int64_t k, int64_t experts, int64_t block, bool packed) {
    const auto refuse = [](const std::string& what) { throw std::invalid_argument("expert_sort: " + what); };
    if (experts < 1 || experts > most_experts)
        refuse(std::to_string(experts) + " experts; 1 .. " + std::to_string(most_experts) + " are allowed");
    if (block < 1 || block > 65536) refuse("blocks of " + std::to_string(block) + "; 1 .. 65536 are allowed");
    if (k < 1 || tokens < 0 || k > INT32_MAX || tokens > INT32_MAX ||
        capacity(tokens * k, experts, block) > INT32_MAX)
        refuse(std::to_string(tokens) + " tokens with " + std::to_string(k) +
               " choices; as many as have 2147483647 places are allowed");
    if (packed && (tokens >= 1 << packed_token_bits || k >= 1 << (31 - packed_token_bits)))
        refuse(std::to_string(tokens) + " tokens with " + std::to_string(k) +
               " choices; 16777215 with 127 are allowed where both are packed into 32 bits");
}

// The number of workgroups that share the pairs of three launches. 1: a single launch does everything. Each of its workgroups reads
// all pairs, which up to this number costs less than launches that wait for each other.
inline int64_t segments(int64_t pairs) {
    constexpr int64_t single = 65536, smallest = 2048, most = 128;
    return pairs <= single ? 1 : std::min(most, (pairs + smallest - 1) / smallest);
}

// `segments` and `segment_counts` are set by the caller; the values derived from the others are set here.
inline std::vector<Launch> plan(int target, SortArguments arguments) {
    const bool all = arguments.segments == 1;
    const uint32_t sharing = arguments.segments * waves;
    arguments.wave_pairs = all ? 64 : ((arguments.pairs + sharing - 1) / sharing + 63) / 64 * 64;
    constexpr uint32_t most_places = 1024;  // per workgroup, most of them padding
    arguments.workgroups = all ? std::max({1u, (arguments.pairs + threads - 1) / threads,
                                           (arguments.capacity + most_places - 1) / most_places})
                               : arguments.segments;
    arguments.id_bits = 0;
    while ((arguments.experts - 1) >> arguments.id_bits) ++arguments.id_bits;
    const auto launch = [&]<class Kind>(Kind, uint32_t workgroups) {
        return launch_of("expert_sort", variants<Kind>.begin()->name, target, {workgroups, 1, 1}, threads,
                         arguments);
    };
    if (all) return {launch(kinds::sort_all{}, arguments.workgroups)};
    return {launch(kinds::count_segment{}, arguments.segments), launch(kinds::add_counts{}, 1),
            launch(kinds::move_segment{}, arguments.segments)};
}

}  // namespace hipkittens::expert_sort
