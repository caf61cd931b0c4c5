// kernels/attention/plan_forward.cpp: selects the variant of the forward, the number of splits of keys, and the arguments.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "plan_order.h"

namespace hipkittens::attention {
namespace {

// Tiles of rows along a head, or along a group of heads that share a tile; and the number of such heads or groups.
int64_t tiles_of(const Problem& p, const ForwardConfig& config) {
    return divide_up(p.n_q * config.heads_together(static_cast<int>(group_of(p))), config.queries());
}
int64_t heads_of(const Problem& p, const ForwardConfig& config) {
    return p.heads / config.heads_together(static_cast<int>(group_of(p)));
}
int64_t workgroups_of(const Problem& p, const ForwardConfig& config) {
    return tiles_of(p, config) * heads_of(p, config) * p.batch;
}

// One LSE per row.
int64_t statistics(const Problem& p) { return tensor_batch(p) * p.heads * query_rows(p); }

// The largest number of key tiles that any workgroup processes.
int64_t most_key_tiles(const Problem& p, const ForwardConfig& config) {
    const Mask mask = mask_of(p);
    const int64_t queries = divide_up(config.queries() * heads_of(p, config), p.heads) + 1;
    const int64_t seen = static_cast<int64_t>(mask.left) + mask.right + queries;
    if (seen >= p.n_k) return divide_up(p.n_k, config.keys_per_tile);
    return std::min(divide_up(seen, config.keys_per_tile) + 1, divide_up(p.n_k, config.keys_per_tile));
}

// The number of splits of the keys if there are fewer workgroups than compute units. Costs are in units of a loop
// over one tile of keys (64 keys, 128 queries: about 2 us at head_dim 128), and are estimates, not yet measured on a GPU:
// a workgroup needs `start` to load its queries and first tiles; a split needs `spill` to write f32 rows that are read back;
// the second launch costs `join`, and each of its rows iterates over all splits, 16 in the time of one tile.
// rounds x (start + tiles + spill) + join + splits / 16 is minimal for the returned number of splits; of equals, the fewest.
int64_t splits_of_keys(const Problem& p, const ForwardConfig& config, int64_t units) {
    constexpr int64_t start = 2, spill = 3, join = 4, splits_per_tile = 16;
    constexpr int64_t shortest = 2;  // tiles: while one is attended to, the next is loaded
    const int64_t workgroups = workgroups_of(p, config), tiles = most_key_tiles(p, config);
    if (workgroups >= units) return 1;
    const auto cost = [&](int64_t splits) {
        const int64_t rounds = divide_up(workgroups * splits, units),
                      length = start + divide_up(tiles, splits);
        if (splits == 1) return splits_per_tile * rounds * length;
        return splits_per_tile * (rounds * (length + spill) + join) + splits;
    };
    int64_t best = 1;
    // More than two rounds only repeat the costs of a split.
    for (int64_t splits = 2; splits * shortest <= tiles && workgroups * splits <= 2 * units; ++splits)
        if (cost(splits) < cost(best)) best = splits;
    return best;
}

Launch combine_launch(const Problem& p, const ForwardArguments& forward) {
    CombineArguments arguments{};
    arguments.partial_out = forward.partial_out;
    arguments.partial_lse = forward.partial_lse;
    arguments.out = forward.out;
    arguments.lse = forward.lse;
    arguments.rows = statistics(p);
    arguments.rows_per_head = query_rows(p);
    arguments.heads = static_cast<int32_t>(p.heads);
    arguments.splits = forward.order.splits;
    arguments.value_dim = forward.value_dim;
    arguments.sinks = p.sinks;
    // HIP counts the threads of a grid dimension in 32 bits.
    const int64_t workgroups = divide_up(arguments.rows, combine_threads / combine_lanes_per_row);
    if (workgroups * combine_threads > 0xffffffffll)
        refuse("the grid that joins splits has 2^32 threads or more");
    for (const Row<kinds::combine>& variant : variants<kinds::combine>)
        if (runs_on(variant.targets, variant.config.element, p))
            return hipkittens::launch_of("attention", variant.name, p.device.target,
                                         {static_cast<uint32_t>(workgroups), 1, 1}, combine_threads,
                                         arguments);
    refuse("no kernel joins splits of this element type");
}

}  // namespace

bool suits(const ForwardVariant& variant, const ForwardProblem& problem) {
    const Problem& p = problem.shared;
    if (!runs_on(variant.targets, variant.config.input, p)) return false;
    if (variant.config.dropout != (p.dropout_p > 0) || variant.config.terms != terms_of(p)) return false;
    // The offset of a lane reaches all heads of the queries of a wave.
    if (variant.config.query_rows == QueryRows::of_group &&
        (ForwardConfig::queries_per_wave * problem.q.row_stride + group_of(p) * problem.q.head_stride) * 2 >=
            reach_bytes)
        return false;
    return p.head_dim <= variant.config.head_dim && p.value_dim <= variant.config.value_dim;
}

ForwardChoice choose_forward(const ForwardProblem& problem) {
    const Problem& p = problem.shared;
    check(p);
    const int64_t units = p.device.compute_units;
    // If the queries of one head fill at most one wave, the heads of a group share a tile and the keys loaded for it. The
    // longest sequence of a batch decides this; large tiles are chosen by their number.
    const bool invariant = p.device.batch_invariant;
    const bool few_queries = !invariant && group_of(p) > 1 && p.n_q <= ForwardConfig::queries_per_wave;
    const ForwardVariant* best = nullptr;
    for (const ForwardVariant& variant : variants<kinds::forward>) {
        if (!suits(variant, problem)) continue;
        const ForwardConfig& config = variant.config;
        // Large tiles only if there is at least one per compute unit, and none of them is half empty.
        if (config.waves == 8 &&
            (invariant || workgroups_of(p, config) < units || 2 * p.n_q <= config.queries()))
            continue;
        const auto worse = [&](const ForwardConfig& config) {
            const bool grouped = config.query_rows == QueryRows::of_group;
            return (config.head_dim + config.value_dim) * 2 + 2 * (grouped != few_queries) +
                   (config.schedule == Schedule::simple);
        };
        if (!best || worse(config) < worse(best->config)) best = &variant;
    }
    if (!best) refuse("no variant has this element type and head_dim");
    return {best, invariant ? 1 : splits_of_keys(p, best->config, units)};
}

int64_t forward_workspace_floats(const Problem& p, const ForwardChoice& choice) {
    return choice.splits > 1 ? choice.splits * statistics(p) * (p.value_dim + 1) : 0;
}

Plan plan_forward(const ForwardProblem& problem, const ForwardChoice& choice) {
    const Problem& p = problem.shared;
    check(p);
    const ForwardVariant& variant = *choice.variant;
    const int64_t rows_q = query_rows(p), rows_k = key_rows(p);
    check_tensor(p, "q", problem.q, rows_q);
    check_tensor(p, "k", problem.k, rows_k);
    check_tensor(p, "v", problem.v, rows_k);
    check_tensor(p, "out", problem.out, rows_q);
    if (!problem.lse) refuse("lse has no data");
    if (choice.splits > 1 && !problem.workspace) refuse("workspace has no data");
    if (!suits(variant, problem)) refuse(std::string(variant.name) + " cannot run this problem");
    const ForwardConfig& config = variant.config;
    const int64_t largest_row =
        std::max({rows_q > 1 ? problem.q.row_stride : 0, rows_k > 1 ? problem.k.row_stride : 0,
                  rows_k > 1 ? problem.v.row_stride : 0});
    check_reach(config.keys_per_tile, largest_row, std::max(config.head_dim, config.value_dim));

    ForwardArguments arguments{};
    arguments.q = argument_of(problem.q);
    arguments.k = argument_of(problem.k);
    arguments.v = argument_of(problem.v);
    arguments.out = argument_of(problem.out);
    arguments.lse = problem.lse;
    arguments.mask = mask_of(p);
    arguments.packed = packed_of(p);
    const int64_t heads = heads_of(p, config), sharing = heads / p.key_heads;
    arguments.order = order_of(p, tiles_of(p, config), heads, sharing, choice.splits, config.threads());
    if (is_causal(p, arguments.mask)) {
        take_longest_first(p, heads, sharing, 2 * p.n_k * (p.head_dim + p.value_dim),
                           config.waves == 8 ? 1 : 2, arguments.order);
        arguments.order.descending = 1;
    }
    arguments.group = static_cast<int32_t>(group_of(p));
    arguments.head_dim = static_cast<int32_t>(p.head_dim);
    arguments.value_dim = static_cast<int32_t>(p.value_dim);
    arguments.dropout = dropout_of(p);
    arguments.terms = term_arguments_of(p, std::fabs(p.scale));
    if (choice.splits == 1) arguments.sinks = p.sinks;
    arguments.scale_log2 = absolute_scale_log2(p);
    arguments.negated = p.scale < 0;

    Plan plan;
    if (choice.splits > 1) {
        arguments.partial_out = problem.workspace;
        arguments.partial_lse = problem.workspace + choice.splits * statistics(p) * p.value_dim;
    }
    plan.launches.push_back(launch_of(variant.name, p, arguments.order, config.threads(), arguments));
    if (choice.splits > 1) plan.launches.push_back(combine_launch(p, arguments));
    return plan;
}

}  // namespace hipkittens::attention
