// kernels/paged_attention/plan.cpp: selects the kernel of attention over a paged cache, and the number of splits.
// SPDX-License-Identifier: MIT
#include "plan.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace hipkittens::paged_attention {

namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void refuse(const std::string& text) {
    throw std::invalid_argument("attention to a cache in pages: " + text);
}

int64_t group_of(const Problem& p) { return p.heads / p.key_heads; }

int32_t limit(int64_t window) {
    return window < 0 || window >= unlimited ? unlimited : static_cast<int32_t>(window);
}

// The largest number of keys that the rows of one workgroup see.
int64_t most_keys(const Problem& p, const Choice& choice) {
    const int64_t all = p.page * p.most_pages;
    if (limit(p.left) == unlimited || limit(p.right) == unlimited) return all;
    const int64_t queries = std::min(p.most_queries, divide_up(choice.config.rows(), group_of(p)) + 1);
    return std::min(all, p.left + p.right + queries);
}

// According to the cycle model, one workgroup per compute unit has enough loads in flight to saturate the memory; two are used where
// one each would leave half of the units idle. No split is so short that its startup and its share of the join outweigh its work: a
// sequence shorter than the maximum of the table gets fewer splits (shortest_split).
int64_t splits_of_keys(const Problem& p, const Choice& choice) {
    const int64_t units = p.device.compute_units;
    const int64_t workgroups = p.sequences * p.key_heads * choice.row_tiles;
    const int64_t possible = divide_up(most_keys(p, choice), int64_t{choice.shortest_split} * tile_keys);
    // With as many splits as the longest sequence can have, the others get splits by their own lengths; a single split is combined as well.
    if (p.device.batch_invariant) return std::clamp<int64_t>(possible, 2, most_splits);
    if (workgroups >= units) return 1;
    const int64_t wanted = (2 * workgroups <= units ? units : 2 * units) / workgroups;
    return std::clamp<int64_t>(std::min(wanted, possible), 1, most_splits);
}

Launch combine_launch(const Problem& p, const PagedArguments& forward) {
    CombineArguments arguments{};
    arguments.partial_out = forward.partial_out;
    arguments.partial_lse = forward.partial_lse;
    arguments.sinks = forward.sinks;
    arguments.sequences = forward.sequences;
    arguments.plan = forward.plan;
    arguments.queries = divisor_of(static_cast<uint32_t>(p.most_queries));
    arguments.out = forward.out;
    arguments.out_token_bytes = forward.out_token_bytes;
    arguments.out_head_bytes = forward.out_head_bytes;
    arguments.lse = forward.lse;
    arguments.tokens = forward.tokens;
    arguments.splits = static_cast<int32_t>(forward.splits.value);
    arguments.head_dim = static_cast<int32_t>(p.value_dim);
    arguments.heads = divisor_of(forward.heads);
    // A row has whole waves, and its own workgroup where groups meet at barriers. With a plan, each sequence has its own number of
    // splits.
    constexpr int groups = combine_threads / group_lanes, log2_most = std::bit_width(groups + 0u) - 1,
                  log2_least = std::bit_width(64u / group_lanes) - 1;
    const int log2_bands = std::bit_width(static_cast<uint64_t>(p.value_dim - 1) / group_columns);
    const bool alone = p.planned || arguments.splits > group_splits;
    arguments.log2_groups_of_row = alone ? log2_most : std::clamp(log2_bands, log2_least, log2_most);
    const int64_t rows = p.tokens * p.heads, rows_of_workgroup = groups >> arguments.log2_groups_of_row;
    for (const Row<kinds::combine>& row : variants<kinds::combine>)
        if (includes(row.targets, p.device.target) && row.config.element == p.element)
            return launch_of("paged_attention", row.name, p.device.target,
                             {static_cast<uint32_t>(divide_up(rows, rows_of_workgroup)), 1, 1},
                             combine_threads, arguments);
    refuse("no kernel joins splits of this element type");
}

}  // namespace

Choice choose(const Problem& p) {
    const int64_t rows = p.most_queries * group_of(p);
    Choice choice{};
    // Rows of a second tile share the keys loaded for the first one.
    const auto worse = [&](const PagedConfig& each) {
        const bool many_rows = rows > 16 || p.device.batch_invariant;
        return many_rows != (each.row_tiles > 1);
    };
    const auto consider = [&](const auto& row) {
        const PagedConfig& config = row.config;
        if (includes(row.targets, p.device.target) && config.element == p.element &&
            config.cache == p.cache && config.scaling == p.scaling && config.grouped == p.grouped &&
            config.head_dim == p.head_dim && config.value_dim() == p.value_dim &&
            (!choice.variant || worse(config) < worse(choice.config))) {
            choice.variant = row.name;
            choice.config = config;
        }
    };
    for (const auto& row : variants<kinds::forward>) consider(row);
    for (const auto& row : variants<kinds::latent>) consider(row);
    for (const auto& row : variants<kinds::latent_shared>) consider(row);
    if (!choice.variant) refuse("no kernel has a head size of " + std::to_string(p.head_dim));
    choice.row_tiles = divide_up(rows, choice.config.rows());
    choice.shortest_split = p.num_splits > 0 ? 1 : shortest_split;
    choice.splits = p.num_splits > 0 ? p.num_splits : splits_of_keys(p, choice);
    return choice;
}

std::vector<Launch> plan(const Problem& p, const Choice& choice, PagedArguments arguments) {
    constexpr int64_t most = UINT32_MAX;
    const int64_t workgroups = choice.row_tiles * choice.splits * p.key_heads * (p.planned ? 1 : p.sequences);
    const bool joins = choice.splits > 1 || p.planned;
    // HIP counts the threads of a grid dimension in 32 bits.
    if (workgroups > most / (waves * 64) || (joins && p.tokens * p.heads > most / combine_threads))
        refuse(std::to_string(p.tokens) + " tokens of " + std::to_string(p.heads) + " heads in " +
               std::to_string(choice.splits) + " splits have 2^32 threads or more");
    arguments.most_keys = static_cast<int32_t>(std::min<int64_t>(p.page * p.most_pages, unlimited - 1));
    arguments.sequences.queries = static_cast<int32_t>(p.most_queries);
    arguments.sequences.count = static_cast<uint32_t>(p.sequences);
    arguments.tokens = static_cast<uint32_t>(p.tokens);
    arguments.heads = static_cast<uint32_t>(p.heads);
    arguments.page = divisor_of(static_cast<uint32_t>(p.page));
    arguments.group = divisor_of(static_cast<uint32_t>(group_of(p)));
    arguments.key_heads = divisor_of(static_cast<uint32_t>(p.key_heads));
    arguments.row_tiles = divisor_of(static_cast<uint32_t>(choice.row_tiles));
    arguments.splits = divisor_of(static_cast<uint32_t>(choice.splits));
    arguments.shortest_split = choice.shortest_split;
    arguments.left = limit(p.left);
    arguments.right = limit(p.right);
    // Rows that share keys stay on one XCD.
    arguments.xcds = static_cast<uint32_t>(p.device.xcds);
    arguments.chunk = arguments.row_tiles.value;
    std::vector<Launch> launches = {launch_of("paged_attention", choice.variant, p.device.target,
                                              {static_cast<uint32_t>(workgroups), 1, 1}, waves * 64,
                                              arguments)};
    if (joins) launches.push_back(combine_launch(p, arguments));
    return launches;
}

Launch plan_merge(int target, ElementType element, MergeArguments arguments) {
    const uint32_t threads_per_row = arguments.head_dim / merge_columns;
    const int64_t threads = int64_t{arguments.tokens} * arguments.heads.value * threads_per_row;
    if (threads > UINT32_MAX - merge_threads)
        throw std::invalid_argument("attention_merge: results have 2^35 elements or more");
    arguments.threads_per_row = divisor_of(threads_per_row);
    for (const Row<kinds::merge>& row : variants<kinds::merge>)
        if (includes(row.targets, target) && row.config.element == element)
            return launch_of("paged_attention", row.name, target,
                             {static_cast<uint32_t>(divide_up(threads, merge_threads)), 1, 1}, merge_threads,
                             arguments);
    throw std::invalid_argument("attention_merge: no kernel has this element type");
}

}  // namespace hipkittens::paged_attention
