// kernels/attention/plan.cpp: which variant, how many workgroups, in which order.
// SPDX-License-Identifier: MIT
#include "plan.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "../../tiles/target.h"

namespace hipkittens::attention {
namespace {

// Lane offsets inside a tile stay below this (tiles/global_layout.h, out_of_range).
constexpr int64_t reach_bytes = 0xfff00000;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument("attention: " + text); }

void check(const Problem& p) {
    if (p.target != 942 && p.target != 950)
        refuse("target gfx" + std::to_string(p.target) + " has no kernels; gfx942 and gfx950 have");
    auto extent = [&](const char* name, int64_t value, int64_t smallest) {
        if (value < smallest || value > longest_sequence)
            refuse(std::string(name) + " = " + std::to_string(value) + " is not in " +
                   std::to_string(smallest) + " .. " + std::to_string(longest_sequence));
    };
    extent("batch", p.batch, 1);
    extent("n_q", p.n_q, 1);
    extent("n_k", p.n_k, 0);
    extent("heads", p.heads, 1);
    extent("key heads", p.key_heads, 1);
    if (p.heads % p.key_heads)
        refuse(std::to_string(p.heads) + " heads are not a multiple of " + std::to_string(p.key_heads) +
               " key heads");
    if (p.head_dim < 8 || p.head_dim > 256 || p.head_dim % 8)
        refuse("head_dim = " + std::to_string(p.head_dim) + " is not a multiple of 8 in 8 .. 256");
    if (!std::isfinite(p.scale)) refuse("scale is not finite");
    if (!p.first_q != !p.first_k) refuse("packed sequences need the first rows of both queries and keys");
    if (p.first_q) {
        extent("all rows of q", p.rows_q, 1);
        extent("all rows of k", p.rows_k, 0);
    }
    if (!(p.dropout_p >= 0 && p.dropout_p < 1))
        refuse("dropout_p = " + std::to_string(p.dropout_p) + " is not in [0, 1)");
    if ((p.dropout_p > 0) != (p.seed != nullptr)) refuse("a seed is needed exactly when dropout_p > 0");
}

// Rows of the tensors along their row dimension, and batches along theirs.
int64_t query_rows(const Problem& p) { return p.first_q ? p.rows_q : p.n_q; }
int64_t key_rows(const Problem& p) { return p.first_q ? p.rows_k : p.n_k; }
int64_t tensor_batch(const Problem& p) { return p.first_q ? 1 : p.batch; }

// Loads of 16 bytes need rows that begin on 4 bytes (CDNA3 ISA manual 9.1: buffer dwords are aligned).
void check_tensor(const Problem& p, const char* name, const TensorLayout& tensor, int64_t rows) {
    if (rows == 0) return;
    if (!tensor.data) refuse(std::string(name) + " has no data");
    auto stride = [&](const char* which, int64_t value, int64_t count) {
        if (count > 1 && (value < 0 || value % 2))
            refuse(std::string(name) + ": the stride of its " + which + " is " + std::to_string(value) +
                   " elements; it must be even and not negative");
    };
    stride("batch", tensor.batch_stride, tensor_batch(p));
    stride("rows", tensor.row_stride, rows);
    stride("heads", tensor.head_stride, p.heads);
    if (reinterpret_cast<uintptr_t>(tensor.data) % 4)
        refuse(std::string(name) + " does not begin on 4 bytes");
}

TensorArgument argument_of(const TensorLayout& tensor) {
    return {tensor.data, tensor.batch_stride, tensor.row_stride, tensor.head_stride};
}

int32_t limit(int64_t window) {
    return window < 0 || window >= unlimited ? unlimited : static_cast<int32_t>(window);
}

Mask mask_of(const Problem& p) {
    Mask mask{static_cast<int32_t>(p.n_q), static_cast<int32_t>(p.n_k), limit(p.window_left),
              limit(p.window_right)};
    if (p.causal) mask.right = std::min(mask.right, 0);
    return mask;
}

PackedSequences packed_of(const Problem& p) { return {p.first_q, p.first_k, p.first_q ? p.rows_q : 0}; }

Dropout dropout_of(const Problem& p) {
    const auto threshold = std::min<uint32_t>(static_cast<uint32_t>(std::lround(p.dropout_p * 65536)), 65535);
    return {p.seed, threshold, 65536.0f / static_cast<float>(65536 - threshold)};
}

// sharing: heads whose tiles read the same rows of the other side, which an XCD's L2 then serves.
WorkgroupOrder order_of(const Problem& p, int64_t tiles, int64_t heads, int64_t sharing, int64_t parts,
                        int64_t threads) {
    const kittens::Target& target = p.target == 942 ? kittens::gfx942 : kittens::gfx950;
    const int64_t workgroups = tiles * heads * p.batch * parts;
    // HIP counts the threads of a grid dimension in 32 bits.
    if (workgroups * threads > 0xffffffffll) refuse("the grid has 2^32 threads or more");
    WorkgroupOrder order{};
    order.tiles = static_cast<int32_t>(tiles);
    order.heads = static_cast<int32_t>(heads);
    order.batch = static_cast<int32_t>(p.batch);
    order.splits = static_cast<int32_t>(parts);
    order.together = 1;
    order.xcds = target.xcds;
    order.chunk = static_cast<uint32_t>(
        std::clamp<int64_t>(tiles * sharing, 1, std::max<int64_t>(1, workgroups / target.xcds)));
    return order;
}

template <class Arguments>
Launch launch_of(const char* variant, const Problem& p, const WorkgroupOrder& order, int threads,
                 const Arguments& arguments) {
    const auto workgroups = static_cast<uint32_t>(order.tiles) * order.heads * order.batch * order.splits;
    return hipkittens::launch_of("attention", variant, p.target, {workgroups, 1, 1}, threads, arguments);
}

bool runs_on(Targets targets, ElementType input, const Problem& p) {
    return includes(targets, p.target) && input == p.element;
}

}  // namespace

bool suits(const ForwardVariant& variant, const ForwardProblem& problem) {
    const Problem& p = problem.shared;
    if (!runs_on(variant.targets, variant.config.input, p)) return false;
    if (variant.config.dropout != (p.dropout_p > 0)) return false;
    return p.head_dim <= variant.config.head_dim;
}

namespace {

int64_t compute_units(const Problem& p) {
    return p.compute_units > 0 ? p.compute_units
                               : (p.target == 942 ? kittens::gfx942 : kittens::gfx950).compute_units;
}

int64_t workgroups_of(const Problem& p, const ForwardConfig& config) {
    return divide_up(p.n_q, config.queries()) * p.heads * p.batch;
}

// One LSE each.
int64_t statistics(const Problem& p) { return tensor_batch(p) * p.heads * query_rows(p); }

// Tiles of keys that a workgroup goes over when it has the most to do.
int64_t longest_walk(const Problem& p, const ForwardConfig& config) {
    const Mask mask = mask_of(p);
    const int64_t seen = static_cast<int64_t>(mask.left) + mask.right + config.queries();
    if (seen >= p.n_k) return divide_up(p.n_k, config.keys_per_tile);
    return std::min(divide_up(seen, config.keys_per_tile) + 1, divide_up(p.n_k, config.keys_per_tile));
}

// Into how many parts to split the keys when there are fewer workgroups than compute units. Costs are in units of a walk
// over one tile of keys (64 keys, 128 queries: about 2 us at head_dim 128), and are estimates, not yet measured on a GPU:
// a workgroup needs `start` to load its queries and first tiles; a part `spill` to write f32 rows and have them read back;
// the second launch costs `join`, and each of its rows walks over all parts, 16 in the time of a tile.
// rounds x (start + tiles + spill) + join + parts / 16 is least for the number of parts returned; of equals, the fewest.
int64_t parts_of_keys(const Problem& p, const ForwardConfig& config, int64_t units) {
    constexpr int64_t start = 2, spill = 3, join = 4, parts_per_tile = 16;
    constexpr int64_t shortest = 2;  // tiles: while one is attended to, the next is loaded
    const int64_t workgroups = workgroups_of(p, config), tiles = longest_walk(p, config);
    if (workgroups >= units) return 1;
    const auto cost = [&](int64_t parts) {
        const int64_t rounds = divide_up(workgroups * parts, units), walk = start + divide_up(tiles, parts);
        if (parts == 1) return parts_per_tile * rounds * walk;
        return parts_per_tile * (rounds * (walk + spill) + join) + parts;
    };
    int64_t best = 1;
    // More than two rounds only repeat what a part costs.
    for (int64_t parts = 2; parts * shortest <= tiles && workgroups * parts <= 2 * units; ++parts)
        if (cost(parts) < cost(best)) best = parts;
    return best;
}

// Tiles of queries become longer from the first to the last, those of keys shorter.
bool is_causal(const Problem& p, const Mask& mask) { return mask.left >= p.n_k && mask.right < p.n_k; }

// Under a causal mask: heads that share rows of the other side, and further ones until an XCD's places for workgroups are
// taken, or its L2 by those rows: `bytes` of each `sharing` heads, of which `all` divide into equal numbers taken together.
void take_longest_first(const Problem& p, int64_t all, int64_t sharing, int64_t bytes,
                        int64_t places_per_unit, WorkgroupOrder& order) {
    constexpr int64_t l2_bytes = 4 << 20;
    const int64_t places = compute_units(p) / order.xcds * places_per_unit;
    const int64_t workgroups = static_cast<int64_t>(order.tiles) * order.heads * order.batch * order.splits;
    int64_t together = sharing;
    for (int64_t heads = 2 * sharing; heads <= all; heads += sharing) {
        if (together * order.tiles >= places || heads * order.tiles * order.xcds > workgroups ||
            heads / sharing * bytes > l2_bytes)
            break;
        if (all % heads == 0) together = heads;
    }
    order.together = static_cast<int32_t>(together);
    order.chunk = static_cast<uint32_t>(
        std::clamp<int64_t>(order.tiles * together, 1, std::max<int64_t>(1, workgroups / order.xcds)));
}

Launch combine_launch(const Problem& p, const ForwardArguments& forward) {
    CombineArguments arguments{};
    arguments.partial_out = forward.partial_out;
    arguments.partial_lse = forward.partial_lse;
    arguments.out = forward.out;
    arguments.lse = forward.lse;
    arguments.rows = statistics(p);
    arguments.rows_per_head = query_rows(p);
    arguments.heads = forward.order.heads;
    arguments.splits = forward.order.splits;
    arguments.head_dim = forward.head_dim;
    // HIP counts the threads of a grid dimension in 32 bits.
    const int64_t workgroups = divide_up(arguments.rows, combine_threads / combine_lanes_per_row);
    if (workgroups * combine_threads > 0xffffffffll)
        refuse("the grid that joins parts has 2^32 threads or more");
    for (const Row<kinds::combine>& variant : variants<kinds::combine>)
        if (runs_on(variant.targets, variant.config.element, p))
            return hipkittens::launch_of("attention", variant.name, p.target,
                                         {static_cast<uint32_t>(workgroups), 1, 1}, combine_threads,
                                         arguments);
    refuse("no kernel joins parts of this element type");
}

}  // namespace

Plan plan_forward_variant(const ForwardProblem& problem, const ForwardChoice& choice) {
    const Problem& p = problem.shared;
    check(p);
    const ForwardVariant& variant = *choice.variant;
    const int64_t rows_q = query_rows(p), rows_k = key_rows(p);
    check_tensor(p, "q", problem.q, rows_q);
    check_tensor(p, "k", problem.k, rows_k);
    check_tensor(p, "v", problem.v, rows_k);
    check_tensor(p, "out", problem.out, rows_q);
    if (!problem.lse) refuse("lse has no data");
    if (choice.parts > 1 && !problem.workspace) refuse("workspace has no data");
    if (!suits(variant, problem)) refuse(std::string(variant.name) + " cannot run this problem");
    const ForwardConfig& config = variant.config;
    const int64_t largest_row =
        std::max({rows_q > 1 ? problem.q.row_stride : 0, rows_k > 1 ? problem.k.row_stride : 0,
                  rows_k > 1 ? problem.v.row_stride : 0});
    if ((config.keys_per_tile * largest_row + config.head_dim) * 2 >= reach_bytes)
        refuse("rows " + std::to_string(largest_row) +
               " elements apart: a tile of rows must lie within 4 GiB");

    ForwardArguments arguments{};
    arguments.q = argument_of(problem.q);
    arguments.k = argument_of(problem.k);
    arguments.v = argument_of(problem.v);
    arguments.out = argument_of(problem.out);
    arguments.lse = problem.lse;
    arguments.mask = mask_of(p);
    arguments.packed = packed_of(p);
    arguments.order = order_of(p, divide_up(p.n_q, config.queries()), p.heads, p.heads / p.key_heads,
                               choice.parts, config.threads());
    if (is_causal(p, arguments.mask)) {
        take_longest_first(p, p.heads, p.heads / p.key_heads, 4 * p.n_k * p.head_dim,
                           config.waves == 8 ? 1 : 2, arguments.order);
        arguments.order.descending = 1;
    }
    arguments.group = static_cast<int32_t>(p.heads / p.key_heads);
    arguments.head_dim = static_cast<int32_t>(p.head_dim);
    arguments.dropout = dropout_of(p);
    // Exponents are base 2. A scale of zero weighs all visible keys alike; any product with a scale this small does,
    // and -inf stays what it is.
    const double scale = std::max(std::fabs(p.scale) * 1.4426950408889634, 1e-30);
    arguments.scale_log2 = static_cast<float>(scale);
    arguments.negated = p.scale < 0;

    Plan plan;
    if (choice.parts > 1) {
        arguments.partial_out = problem.workspace;
        arguments.partial_lse = problem.workspace + choice.parts * statistics(p) * p.head_dim;
    }
    plan.launches.push_back(launch_of(variant.name, p, arguments.order, config.threads(), arguments));
    if (choice.parts > 1) plan.launches.push_back(combine_launch(p, arguments));
    return plan;
}

ForwardChoice choose_forward(const ForwardProblem& problem) {
    const Problem& p = problem.shared;
    check(p);
    const int64_t units = compute_units(p);
    const ForwardVariant* best = nullptr;
    for (const ForwardVariant& variant : variants<kinds::forward>) {
        if (!suits(variant, problem)) continue;
        const ForwardConfig& config = variant.config;
        // Large tiles only where there is one for every compute unit, and no half of it stays empty.
        if (config.waves == 8 && (workgroups_of(p, config) < units || 2 * p.n_q <= config.queries()))
            continue;
        const auto worse = [](const ForwardConfig& config) {
            return config.head_dim * 2 + (config.schedule == Schedule::simple);
        };
        if (!best || worse(config) < worse(best->config)) best = &variant;
    }
    if (!best) refuse("no variant has this element type and head_dim");
    return {best, parts_of_keys(p, best->config, units)};
}

int64_t forward_workspace_floats(const Problem& p, int64_t parts) {
    return parts > 1 ? parts * statistics(p) * (p.head_dim + 1) : 0;
}

int64_t forward_workspace_floats(const ForwardProblem& problem) {
    return forward_workspace_floats(problem.shared, choose_forward(problem).parts);
}

Plan plan_forward(const ForwardProblem& problem) {
    return plan_forward_variant(problem, choose_forward(problem));
}

namespace {

int64_t statistics_rows(const Problem& p) {
    if (p.first_q) return statistics_row(p.rows_q, static_cast<int>(p.batch));
    return divide_up(p.n_q, statistics_block) * statistics_block;
}

using BackwardVariant = Row<kinds::backward>;

// The smallest variant whose tiles hold the heads; null if none does.
const BackwardVariant* find(const Problem& p, GradientTarget wanted) {
    const BackwardVariant* best = nullptr;
    for (const BackwardVariant& variant : variants<kinds::backward>)
        if (variant.config.gradient_of == wanted && runs_on(variant.targets, variant.config.input, p) &&
            variant.config.dropout == (p.dropout_p > 0) && p.head_dim <= variant.config.head_dim &&
            (!best || variant.config.head_dim < best->config.head_dim))
            best = &variant;
    return best;
}

// Blocks of keys of all sequences together, for one head.
int64_t blocks_per_key_head(const Problem& p) {
    if (p.first_k) return statistics_row(p.rows_k, static_cast<int>(p.batch)) / statistics_block;
    return divide_up(p.n_k, statistics_block);
}

// Workgroups that take equally long: how long, and their number.
struct Walks {
    int64_t clocks, count;
};
// No schedule on so many compute units takes less: the mean, and of the k units + 1 longest, k + 1 meet on one unit. The
// longest are first, and schedules that take them first come close.
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

// Clocks of the one pass as the cycle model has them (docs/attention_tuning.md): of a workgroup beside its steps, of a step
// of one query head, and of the convert kernel for the sums that one workgroup shares.
struct KeyClocks {
    int64_t start, step, share;
};
KeyClocks clocks_of(int target, const BackwardConfig& config) {
    const bool small = config.head_dim <= 64;
    if (target == 942) return small ? KeyClocks{17600, 3420, 5400} : KeyClocks{19900, 2900, 13000};
    return small ? KeyClocks{15000, 2580, 5400} : KeyClocks{17000, 3690, 13000};
}

int64_t splits_of_group(const Problem& p, int64_t heads) { return divide_up(p.heads / p.key_heads, heads); }

// How many query heads of a group a workgroup of keys goes over: not all where they would leave compute units idle.
int64_t heads_per_split(const Problem& p, const BackwardVariant* one_pass) {
    if (!one_pass) return p.heads / p.key_heads;
    const BackwardConfig& config = one_pass->config;
    const int64_t group = p.heads / p.key_heads, units = compute_units(p), most = 4 * units;
    // The lengths of packed sequences are on the device: as if all were like the longest.
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
    const KeyClocks of = clocks_of(p.target, config);
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
        // As many splits with fewer heads are no shorter.
        heads = divide_up(group, splits_of_group(p, heads));
        if (tiles * alike * splits_of_group(p, heads) > most) break;
        const int64_t now = clocks(heads);
        if (now < least) best = heads, least = now;
    }
    return best;
}

// What the kernels of the backward share in memory, in floats from the workspace's beginning.
struct BackwardWorkspace {
    int64_t dq_accumulator, key_bounds, statistics, split_partials, floats_per_split, end;
};
BackwardWorkspace workspace_of(const Problem& p, const BackwardVariant* one_pass, int64_t splits) {
    const int64_t rows = tensor_batch(p) * p.heads * statistics_rows(p);
    const int64_t key_blocks = tensor_batch(p) * p.key_heads * blocks_per_key_head(p);
    const auto aligned = [](int64_t floats) { return divide_up(floats, 4) * 4; };
    BackwardWorkspace at{};
    at.key_bounds = one_pass ? rows * one_pass->config.head_dim : 0;
    at.statistics = aligned(at.key_bounds + (one_pass ? 2 * key_blocks : 0));
    at.split_partials = at.end = at.statistics + static_cast<int>(Statistic::count) * rows;
    if (splits > 1) {
        at.floats_per_split = 2 * key_blocks * statistics_block * one_pass->config.head_dim;
        at.end += splits * at.floats_per_split;
    }
    return at;
}

// Blocks of queries, and after them some of keys.
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

int64_t backward_workspace_floats(const Problem& p) {
    check(p);
    const BackwardVariant* one_pass = find(p, GradientTarget::one_pass);
    return workspace_of(p, one_pass, splits_of_group(p, heads_per_split(p, one_pass))).end;
}

Plan plan_backward(const BackwardProblem& problem) {
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
    const int64_t largest_row =
        std::max({rows_q > 1 ? problem.q.row_stride : 0, rows_q > 1 ? problem.out.row_stride : 0,
                  rows_q > 1 ? problem.grad_out.row_stride : 0, rows_k > 1 ? problem.k.row_stride : 0,
                  rows_k > 1 ? problem.v.row_stride : 0});
    if ((statistics_block * largest_row + p.head_dim) * 2 >= reach_bytes)
        refuse("rows " + std::to_string(largest_row) +
               " elements apart: a tile of rows must lie within 4 GiB");

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
    const BackwardVariant* one_pass = find(p, GradientTarget::one_pass);
    const int64_t split_heads = heads_per_split(p, one_pass), splits = splits_of_group(p, split_heads);
    const BackwardWorkspace workspace = workspace_of(p, one_pass, splits);
    arguments.statistics = problem.workspace + workspace.statistics;
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
    arguments.group = static_cast<int32_t>(p.heads / p.key_heads);
    arguments.heads_per_split = static_cast<int32_t>(split_heads);
    arguments.splits = static_cast<int32_t>(splits);
    arguments.split_partials = problem.workspace + workspace.split_partials;
    arguments.floats_per_split = workspace.floats_per_split;
    arguments.head_dim = static_cast<int32_t>(p.head_dim);
    arguments.statistics_rows = static_cast<int32_t>(statistics_rows(p));
    arguments.scale = static_cast<float>(p.scale);
    // A scale of zero weighs all visible keys alike; any product with a scale this small does.
    const double scale_log2 =
        std::copysign(std::max(std::fabs(p.scale) * 1.4426950408889634, 1e-30), p.scale);
    arguments.scale_log2 = static_cast<float>(scale_log2);
    arguments.dropout = dropout_of(p);

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
        if (is_causal(p, arguments.mask)) {
            const int64_t streamed_rows = of_queries ? p.n_k : p.n_q * arguments.heads_per_split;
            take_longest_first(p, heads * p.batch * row_splits, sharing, 4 * streamed_rows * p.head_dim, 1,
                               arguments.order);
            arguments.order.descending = of_queries;
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
    if (one_pass)
        for (const Row<kinds::convert>& variant : variants<kinds::convert>)
            if (runs_on(variant.targets, variant.config.element, p))
                plan.launches.push_back(launch_over_blocks(
                    variant.name, p, arguments, p.n_q,
                    splits > 1 ? key_blocks * convert_workgroups(arguments.dq_width) : 0));
    return plan;
}

}  // namespace hipkittens::attention
