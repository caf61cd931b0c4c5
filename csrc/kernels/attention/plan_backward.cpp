// kernels/attention/plan_backward.cpp: selects the kernels of the backward, their order, memory and arguments.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "plan_order.h"

namespace hipkittens::attention {
namespace {

int64_t statistics_rows(const Problem& p) {
    if (p.first_q) return statistics_row(p.rows_q, static_cast<int>(p.batch));
    return divide_up(p.n_q, statistics_block) * statistics_block;
}

// The smallest variant whose tiles fit the heads; null if there is none.
const BackwardVariant* find(const Problem& p, GradientTarget wanted) {
    const BackwardVariant* best = nullptr;
    for (const BackwardVariant& variant : variants<kinds::backward>)
        if (variant.config.gradient_of == wanted && runs_on(variant.targets, variant.config.input, p) &&
            variant.config.dropout == (p.dropout_p > 0) && variant.config.terms == terms_of(p) &&
            p.head_dim <= variant.config.head_dim && p.value_dim <= variant.config.value_dim &&
            (!best || variant.config.head_dim < best->config.head_dim))
            best = &variant;
    return best;
}

// Blocks of keys of all sequences together, for one head.
int64_t blocks_per_key_head(const Problem& p) {
    if (p.first_k) return statistics_row(p.rows_k, static_cast<int>(p.batch)) / statistics_block;
    return divide_up(p.n_k, statistics_block);
}

// Workgroups with equal run time: that time, and their number.
struct Walks {
    int64_t clocks, count;
};
// A lower bound of any schedule on this many compute units: the mean; and, of the k units + 1 longest workgroups, at
// least k + 1 run on one unit. The walks are sorted longest first, and schedules that take them in that order come close.
int64_t least_clocks(std::vector<Walks> walks, int64_t units) {
    std::sort(walks.begin(), walks.end(),
              [](const Walks& one, const Walks& other) { return one.clocks > other.clocks; });
    int64_t all = 0, total = 0;
    for (const Walks& walk : walks) all += walk.count, total += walk.clocks * walk.count;
    int64_t least = divide_up(total, units);
    for (int64_t k = 0; k * units < all; ++k) {
        // Walks k units - k .. k units.
        int64_t together = 0, past = 0;
        for (const Walks& walk : walks) {
            const int64_t first = std::max(past, k * units - k);
            past += walk.count;
            together += walk.clocks * std::max<int64_t>(0, std::min(past, k * units + 1) - first);
            if (past > k * units) break;
        }
        least = std::max(least, together);
    }
    return least;
}

// Clocks of the one-pass kernel according to the cycle model (docs/attention_tuning.md): of a workgroup apart from its
// steps, of a step of one query head, and of the convert kernel for the gradients of one workgroup's split.
struct KeyClocks {
    int64_t start, step, share;
};
KeyClocks clocks_of(int target, const BackwardConfig& config) {
    const bool gfx942 = target == 942;
    if (config.head_dim <= 64) return gfx942 ? KeyClocks{17600, 3420, 5400} : KeyClocks{15000, 2580, 5400};
    if (config.head_dim <= 128) return gfx942 ? KeyClocks{19900, 2900, 13000} : KeyClocks{17000, 3690, 13000};
    return gfx942 ? KeyClocks{25700, 4050, 16300} : KeyClocks{24800, 2540, 16300};
}

int64_t splits_of_group(const Problem& p, int64_t heads) { return divide_up(group_of(p), heads); }

// How many query heads of a group a workgroup of keys processes: not all if that would leave compute units idle.
int64_t heads_per_split(const Problem& p, const BackwardVariant* one_pass) {
    if (!one_pass || p.device.batch_invariant) return group_of(p);
    const BackwardConfig& config = one_pass->config;
    const int64_t group = group_of(p), units = p.device.compute_units, most = 4 * units;
    // The lengths of packed sequences are on the device; all are treated as if they had the longest length.
    const int64_t sequences = p.first_k ? divide_up(p.rows_k, std::max<int64_t>(1, p.n_k)) : p.batch;
    const int64_t tiles = divide_up(p.n_k, config.rows()), alike = p.key_heads * sequences;
    const Mask mask = mask_of(p);
    const auto steps_of = [&](int64_t tile) {
        const auto first = static_cast<int>(tile * config.rows());
        const int last = static_cast<int>(std::min<int64_t>(first + config.rows(), p.n_k)) - 1;
        const int64_t begin = mask.first_query(first) / config.stream_rows,
                      past = divide_up(mask.last_query(last) + 1, config.stream_rows);
        return std::max<int64_t>(0, past - begin);
    };
    const KeyClocks of = clocks_of(p.device.target, config);
    const auto clocks = [&](int64_t heads) {
        const int64_t splits = splits_of_group(p, heads), shares = splits > 1 ? splits * tiles * alike : 0;
        std::vector<Walks> walks;
        for (int64_t tile = 0; tile < tiles; ++tile) {
            const int64_t of_head = steps_of(tile) * of.step;
            walks.push_back({of.start + of_head * heads, alike * (splits - 1)});
            walks.push_back({of.start + of_head * (group - heads * (splits - 1)), alike});
        }
        return least_clocks(std::move(walks), units) + divide_up(shares * of.share, units);
    };
    if (group == 1 || tiles * alike >= most) return group;
    int64_t best = group, least = clocks(group);
    for (int64_t heads = group - 1; heads > 0; --heads) {
        // The same number of splits with fewer heads is no shorter.
        heads = divide_up(group, splits_of_group(p, heads));
        if (tiles * alike * splits_of_group(p, heads) > most) break;
        const int64_t now = clocks(heads);
        if (now < least) best = heads, least = now;
    }
    return best;
}

// The memory shared by the kernels of the backward, as offsets in floats from the beginning of the workspace.
struct BackwardWorkspace {
    int64_t dq_accumulator, key_bounds, statistics, sink_partials, split_partials, floats_per_split, end;
};
BackwardWorkspace workspace_of(const Problem& p, const BackwardVariant* one_pass, int64_t splits) {
    const int64_t rows = tensor_batch(p) * p.heads * statistics_rows(p);
    const int64_t key_blocks = tensor_batch(p) * p.key_heads * blocks_per_key_head(p);
    const auto aligned = [](int64_t floats) { return divide_up(floats, 4) * 4; };
    BackwardWorkspace at{};
    at.key_bounds = one_pass ? rows * one_pass->config.head_dim : 0;
    at.statistics = aligned(at.key_bounds + (one_pass ? 2 * key_blocks : 0));
    at.sink_partials = at.statistics + static_cast<int>(Statistic::count) * rows;
    at.split_partials = at.end = at.sink_partials + (p.sinks ? aligned(rows / statistics_block) : 0);
    if (splits > 1) {
        at.floats_per_split = 2 * key_blocks * statistics_block * one_pass->config.head_dim;
        at.end += splits * at.floats_per_split;
    }
    return at;
}

// Blocks of queries, followed by some blocks of keys.
Launch launch_over_blocks(const char* variant, const Problem& p, BackwardArguments arguments,
                          int64_t query_rows, int64_t key_blocks) {
    const int threads = delta_threads;
    arguments.order =
        order_of(p, divide_up(query_rows, statistics_block), p.heads, arguments.group, 1, threads);
    Launch launch = launch_of(variant, p, arguments.order, threads, arguments);
    if ((launch.grid[0] + key_blocks) * threads > 0xffffffffll) refuse("the grid has 2^32 threads or more");
    launch.grid[0] += static_cast<uint32_t>(key_blocks);
    return launch;
}

}  // namespace

BackwardChoice choose_backward(const Problem& p) {
    check(p);
    const BackwardVariant* one_pass = find(p, GradientTarget::one_pass);
    return {one_pass, heads_per_split(p, one_pass)};
}

int64_t backward_workspace_floats(const Problem& p, const BackwardChoice& choice) {
    return workspace_of(p, choice.one_pass, splits_of_group(p, choice.heads_per_split)).end;
}

Plan plan_backward(const BackwardProblem& problem, const BackwardChoice& choice) {
    const Problem& p = problem.shared;
    check(p);
    const int64_t rows_q = query_rows(p), rows_k = key_rows(p);
    check_tensor(p, "q", problem.q, rows_q);
    check_tensor(p, "k", problem.k, rows_k);
    check_tensor(p, "v", problem.v, rows_k);
    check_tensor(p, "out", problem.out, rows_q);
    check_tensor(p, "grad_out", problem.grad_out, rows_q);
    check_tensor(p, "grad_q", problem.grad_q, rows_q);
    check_tensor(p, "grad_k", problem.grad_k, rows_k);
    check_tensor(p, "grad_v", problem.grad_v, rows_k);
    if (!problem.lse) refuse("lse has no data");
    if (!problem.workspace) refuse("workspace has no data");
    if (!p.sinks != !problem.grad_sinks) refuse("sinks and their gradients go together");
    // For the gradient of the LSE, P adds up to 1; for that of the output, to what sinks leave.
    if (p.sinks && problem.grad_lse) refuse("the gradient of an LSE is a problem of its own, without sinks");
    const int64_t largest_row =
        std::max({rows_q > 1 ? problem.q.row_stride : 0, rows_q > 1 ? problem.out.row_stride : 0,
                  rows_q > 1 ? problem.grad_out.row_stride : 0, rows_k > 1 ? problem.k.row_stride : 0,
                  rows_k > 1 ? problem.v.row_stride : 0});
    check_reach(statistics_block, largest_row, std::max(p.head_dim, p.value_dim));

    BackwardArguments arguments{};
    arguments.q = argument_of(problem.q);
    arguments.k = argument_of(problem.k);
    arguments.v = argument_of(problem.v);
    arguments.out = argument_of(problem.out);
    arguments.grad_out = argument_of(problem.grad_out);
    arguments.grad_q = argument_of(problem.grad_q);
    arguments.grad_k = argument_of(problem.grad_k);
    arguments.grad_v = argument_of(problem.grad_v);
    arguments.lse = problem.lse;
    arguments.grad_lse = problem.grad_lse;
    const BackwardVariant* one_pass = choice.one_pass;
    const int64_t split_heads = choice.heads_per_split, splits = splits_of_group(p, split_heads);
    const BackwardWorkspace workspace = workspace_of(p, one_pass, splits);
    arguments.statistics = problem.workspace + workspace.statistics;
    arguments.sinks = p.sinks;
    arguments.grad_sinks = problem.grad_sinks;
    arguments.sink_partials = problem.workspace + workspace.sink_partials;
    if (one_pass) {
        arguments.dq_accumulator = reinterpret_cast<int32_t*>(problem.workspace + workspace.dq_accumulator);
        arguments.key_bounds = problem.workspace + workspace.key_bounds;
    }
    arguments.dq_width = one_pass ? one_pass->config.head_dim : 0;
    arguments.blocks_per_key_head = static_cast<int32_t>(blocks_per_key_head(p));
    arguments.key_tiles = static_cast<int32_t>(divide_up(p.n_k, statistics_block));
    arguments.mask = mask_of(p);
    arguments.packed = packed_of(p);
    arguments.heads = static_cast<int32_t>(p.heads);
    arguments.group = static_cast<int32_t>(group_of(p));
    arguments.heads_per_split = static_cast<int32_t>(split_heads);
    arguments.splits = static_cast<int32_t>(splits);
    arguments.split_partials = problem.workspace + workspace.split_partials;
    arguments.floats_per_split = workspace.floats_per_split;
    arguments.head_dim = static_cast<int32_t>(p.head_dim);
    arguments.value_dim = static_cast<int32_t>(p.value_dim);
    arguments.statistics_rows = static_cast<int32_t>(statistics_rows(p));
    arguments.scale = static_cast<float>(p.scale);
    arguments.scale_log2 = std::copysign(absolute_scale_log2(p), static_cast<float>(p.scale));
    arguments.dropout = dropout_of(p);
    arguments.terms = term_arguments_of(p, p.scale);

    Plan plan;
    const int64_t key_blocks = arguments.key_tiles * p.key_heads * p.batch;
    for (const Row<kinds::delta>& variant : variants<kinds::delta>)
        if (plan.launches.empty() && runs_on(variant.targets, variant.config.element, p))
            plan.launches.push_back(
                launch_over_blocks(variant.name, p, arguments, p.n_q, one_pass ? key_blocks : 0));
    const auto add = [&](const BackwardVariant* variant, int64_t rows, int64_t heads) {
        if (!variant) refuse("no gradient kernel has this element type and head_dim");
        if (rows == 0) return;
        const BackwardConfig& config = variant->config;
        const bool of_queries = config.gradient_of == GradientTarget::queries;
        const int64_t sharing = of_queries ? arguments.group : 1;
        const int64_t row_splits = of_queries ? 1 : arguments.splits;
        arguments.order =
            order_of(p, divide_up(rows, config.rows()), heads, sharing, row_splits, config.threads());
        const bool causal = is_causal(p, arguments.mask), in_step = variant == one_pass;
        if (causal) {
            const int64_t streamed_rows = of_queries ? p.n_k : p.n_q * arguments.heads_per_split;
            take_longest_first(p, heads * p.batch * row_splits, sharing,
                               in_step ? 0 : 2 * streamed_rows * (p.head_dim + p.value_dim), 1,
                               arguments.order);
            arguments.order.descending = of_queries;
        }
        // The longest sequence decides whether a mask is causal. Under batch invariance, all masks are treated as causal.
        if (in_step && (causal || p.device.batch_invariant)) {
            arguments.heads_inside = split_heads > 1 && !p.slopes;
            arguments.turn = p.device.batch_invariant ? UINT32_MAX : p.device.compute_units;
        }
        plan.launches.push_back(launch_of(variant->name, p, arguments.order, config.threads(), arguments));
    };
    if (one_pass) {
        add(one_pass, p.n_k, p.key_heads);
    } else {
        add(find(p, GradientTarget::keys), p.n_k, p.key_heads);
        add(find(p, GradientTarget::values), p.n_k, p.key_heads);
        add(find(p, GradientTarget::queries), p.n_q, p.heads);
    }
    if (p.sinks)
        for (const Row<kinds::sinks>& variant : variants<kinds::sinks>)
            if (includes(variant.targets, p.device.target)) {
                arguments.order = order_of(p, 1, p.heads, 1, 1, variant.config.threads);
                plan.launches.push_back(hipkittens::launch_of("attention", variant.name, p.device.target,
                                                              {static_cast<uint32_t>(p.heads), 1, 1},
                                                              variant.config.threads, arguments));
            }
    if (one_pass)
        for (const Row<kinds::convert>& variant : variants<kinds::convert>)
            if (runs_on(variant.targets, variant.config.element, p))
                plan.launches.push_back(
                    launch_over_blocks(variant.name, p, arguments, p.n_q,
                                       splits > 1 ? key_blocks * convert_workgroups(arguments.dq_width) : 0));
    return plan;
}

}  // namespace hipkittens::attention
