// kernels/gemm/plan_grouped.cpp: selects the variant, and a grid that is large enough for any group sizes.
// SPDX-License-Identifier: MIT
#include "plan_grouped.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace hipkittens::gemm {
namespace {

constexpr int64_t largest_extent = 0x7ffffe00;        // a tile past it still counts in 32 bits
constexpr int64_t most_groups_of_rows = 64 * 64 - 1;  // group_tiles.h: 64 lanes, each with up to 64 groups

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

void check(const GroupedProblem& p) {
    const auto refuse = [](const std::string& text) { throw std::invalid_argument("grouped_gemm: " + text); };
    if (p.device.target != 942 && p.device.target != 950)
        refuse("target gfx" + std::to_string(p.device.target) + " has no kernels; gfx942 and gfx950 have");
    if (p.device.compute_units < 1 || p.device.xcds < 1) refuse("the device has no compute units or no XCDs");
    const auto extent = [&](const char* name, int64_t value, int64_t least, int64_t most) {
        if (value < least || value > most)
            refuse(std::string(name) + " = " + std::to_string(value) + " is not in " + std::to_string(least) +
                   " .. " + std::to_string(most));
    };
    extent("m", p.m, 1, largest_extent);
    extent("n", p.n, 1, largest_extent);
    extent("k", p.k, 0, largest_extent);
    extent("the number of groups", p.groups, 1,
           p.grouping == Grouping::rows ? most_groups_of_rows : largest_extent);
    if (!p.ends && p.grouping != Grouping::none) refuse("the ends of the groups are missing");
    if (p.gated && (p.grouping != Grouping::rows || p.scales != Scales::none))
        refuse("gates are for groups of rows without scales");
    if (p.b.panel_rows && p.grouping != Grouping::rows) refuse("b in panels is for groups of rows");
    if (p.entries) {
        if (p.scales == Scales::none && !p.gated)
            refuse("rows of products without scales or gates are not gathered");
        extent("choices", p.choices, 1, largest_extent);
        extent("the number of tokens", p.tokens, 1, largest_extent);
        if (p.tokens * p.a.leading_stride * size_of(p.a_type) >= reach_bytes)
            refuse("rows of all tokens take 4 GiB or more, which gathered loads do not reach");
    }
    check_panels(p);
    if (p.b.panel_rows && p.gated && p.pair_stride != p.n * p.b.leading_stride)
        refuse("gates and their partners in panels do not alternate");
    if (p.scales == Scales::none) return;
    if (p.grouping != Grouping::rows) refuse("quantised operands have groups of rows alone");
    const bool integers = p.output == ElementType::i32;
    if (integers && (p.a_type != ElementType::i8 || p.a_scale.data || p.b_scale.data || p.bias))
        refuse("integer sums are those of i8, without scales and bias");
    if (!integers && (!p.b_scale.data || (!p.a_scale.data && p.scales != Scales::of_b)))
        refuse("scales are missing");
    if (p.a_type == ElementType::i8 && p.k >= exact_i8_products)
        refuse("k = " + std::to_string(p.k) +
               " is not below 131072, beyond which sums of i8 may not fit in i32");
    if ((p.scales == Scales::in_matrix || p.scales == Scales::of_b) && p.k % 32 != 0)
        refuse("k = " + std::to_string(p.k) + " is no multiple of 32, as scales of 32 of k need");
}

// Upper bound of the tiles along m of all groups: an empty group has none, and the last tile of each of the others may hold a
// single row. The rows past the last group are one more range.
int64_t most_tiles_of_rows(const GroupedProblem& p, const GemmConfig& config) {
    const int64_t ranges = std::min(p.groups + 1, p.m);
    return (p.m + ranges * (config.tile_m - 1)) / config.tile_m;
}

// Columns of C per tile: a gated tile has half as many.
int tile_columns(const GroupedProblem& p, const GemmConfig& config) {
    return p.gated ? config.tile_n / 2 : config.tile_n;
}

// Average number of tiles along m of a group with the given average number of rows, as if each row had chosen its group at random, roughly
// as tokens choose experts. Only the device knows the actual sizes. The result is the sum over t of the probability that a group has more
// than t tiles, by the normal distribution (https://en.wikipedia.org/wiki/Poisson_distribution#Related_distributions), except for t = 0.
double average_tiles(double rows, int tile_m) {
    const double deviation = std::sqrt(rows), certain = std::floor((rows - 6 * deviation) / tile_m);
    double tiles = 1 - std::exp(-rows) + std::max(certain - 1, 0.0);
    for (double t = std::max(certain, 1.0); t * tile_m < rows + 6 * deviation; ++t)
        tiles += std::erfc((t * tile_m + 0.5 - rows) / (std::numbers::sqrt2 * deviation)) / 2;
    return tiles;
}

double tiles_of_group(const GroupedProblem& p, const GemmConfig& config) {
    if (p.grouping != Grouping::rows) return static_cast<double>(divide_up(p.m, config.tile_m));
    return average_tiles(static_cast<double>(p.m) / static_cast<double>(p.groups), config.tile_m);
}

// One product per group.
Problem batch_of(const GroupedProblem& p) {
    Problem batch = p;
    batch.batch = p.groups;
    if (p.grouping == Grouping::inner) batch.k = divide_up(p.k, p.groups);
    batch.k = std::max<int64_t>(batch.k, 1);
    if (p.gated) batch.n *= 2;
    return batch;
}

// Clocks from the start of a workgroup until it knows its tile: group ends are loaded, added up and searched. 256 groups of 32 rows by
// 7168 of 256 take 12,800 clocks per three workgroups of 32x64x128_blocks on MI355X, while the same number from a single product take
// 5,600 (modelled).
constexpr double clocks_to_find_a_tile = 6500;

// Adjacent tiles in a row of tiles that one workgroup processes, so that finding its group is a small share of its time. Still, every
// slot on the device gets several workgroups, which evens out groups of different sizes.
int tiles_of_workgroup(const GroupedProblem& p, const GemmConfig& config) {
    if (p.grouping != Grouping::rows || !config.takes_neighbours()) return 1;
    constexpr double share = 0.2;
    constexpr int64_t workgroups_of_a_place = 4;
    const int target = p.device.target;
    const int64_t places = p.device.compute_units * concurrent_workgroups(target, config),
                  tiles_n = divide_up(p.n, tile_columns(p, config)),
                  tiles = std::llround(tiles_of_group(p, config) * static_cast<double>(p.groups * tiles_n)),
                  wanted =
                      std::llround(clocks_to_find_a_tile / (share * clocks_of_round(target, config, p.k))),
                  most = std::min({wanted, tiles / (places * workgroups_of_a_place), tiles_n});
    return static_cast<int>(divide_up(tiles_n, divide_up(tiles_n, std::max<int64_t>(most, 1))));
}

int64_t most_workgroups(const GroupedProblem& p, const GemmConfig& config) {
    const int64_t of_row = divide_up(divide_up(p.n, tile_columns(p, config)), tiles_of_workgroup(p, config));
    return of_row * (p.grouping == Grouping::rows ? most_tiles_of_rows(p, config)
                                                  : divide_up(p.m, config.tile_m) * p.groups);
}

constexpr auto all_variants = [] {
    constexpr auto& plain = variants<kinds::grouped>;
    constexpr auto& scaled = variants<kinds::scaled_grouped>;
    constexpr auto& gated = variants<kinds::gated_grouped>;
    constexpr auto count =
        (plain.end() - plain.begin()) + (scaled.end() - scaled.begin()) + (gated.end() - gated.begin());
    std::array<GroupedVariant, count> result{};
    auto* next = result.data();
    for (const auto& row : plain) *next++ = {{row.name, row.targets, row.config}};
    for (const auto& row : scaled) *next++ = {{row.name, row.targets, row.config}};
    for (const auto& row : gated) *next++ = {{row.name, row.targets, row.config}, true};
    return result;
}();

// For any sizes and strides.
bool has_kernel(const GroupedProblem& p) {
    return std::ranges::any_of(all_variants, [&](const GroupedVariant& variant) {
        const GemmConfig& config = variant.config;
        return includes(variant.targets, p.device.target) && config.a == p.a_type && config.b == p.b_type &&
               config.scales == p.scales;
    });
}

}  // namespace

bool is_grouped_orientation(Grouping grouping, bool a_is_transposed, bool b_is_transposed) {
    if (grouping == Grouping::rows) return !a_is_transposed;
    if (grouping == Grouping::inner) return a_is_transposed && !b_is_transposed;
    return !(a_is_transposed && b_is_transposed);
}

bool suits(const GroupedVariant& variant, const GroupedProblem& p) {
    const GemmConfig& config = variant.config;
    Problem matrices = p;
    matrices.batch = p.groups;
    return variant.gated == p.gated && suits(variant.targets, config, matrices) &&
           (!p.entries || config.row_start == RowStart::vector) &&
           (!p.gated || reaches_partners(config, p, p)) &&
           (config.row_start == RowStart::element ||
            is_grouped_orientation(p.grouping, p.a.transposed, p.b.transposed)) &&
           // HIP counts the threads of a grid dimension in 32 bits.
           most_workgroups(p, config) * config.threads() <= 0xffffffffll;
}

hipkittens::Launch launch_variant(const GroupedProblem& problem, const GroupedVariant& variant) {
    check(problem);
    if (!suits(variant, problem))
        throw std::invalid_argument(std::string("grouped_gemm: ") + variant.name +
                                    " cannot run this problem");
    const GemmConfig& config = variant.config;
    const auto argument = [](const Matrix& matrix) {
        return MatrixArgument{matrix.data, matrix.leading_stride, matrix.batch_stride};
    };
    ScaledGroupedGemmArguments arguments{};
    arguments.a = argument(problem.a);
    arguments.b = argument(problem.b);
    arguments.c = argument(problem.c);
    arguments.bias = problem.bias;
    arguments.m = static_cast<int32_t>(problem.m);
    arguments.n = static_cast<int32_t>(problem.n);
    arguments.k = static_cast<int32_t>(problem.k);
    arguments.output = problem.output;
    arguments.bias_type = problem.bias_type;
    const int64_t per_store = 16 / size_of(problem.output);
    arguments.vector_stores = problem.n % per_store == 0 && problem.c.leading_stride % per_store == 0 &&
                              problem.c.batch_stride % per_store == 0 &&
                              reinterpret_cast<uintptr_t>(problem.c.data) % 4 == 0;
    arguments.order.tiles_m = static_cast<uint32_t>(divide_up(problem.m, config.tile_m));
    arguments.tiles_of_workgroup = tiles_of_workgroup(problem, config);
    arguments.order.tiles_n = static_cast<uint32_t>(
        divide_up(divide_up(problem.n, tile_columns(problem, config)), arguments.tiles_of_workgroup));
    arguments.order.xcds = static_cast<uint32_t>(problem.device.xcds);
    arguments.b_panel_shift = panel_shift(problem.b);
    arguments.ends = problem.ends;
    arguments.bias_group_stride = problem.bias_group_stride;
    arguments.groups = static_cast<int32_t>(problem.groups);
    arguments.grouping = problem.grouping;
    arguments.entries = problem.entries;
    arguments.choices = divisor_of(static_cast<uint32_t>(problem.choices));
    arguments.tokens = static_cast<int32_t>(problem.tokens);
    arguments.a_scale = problem.a_scale;
    arguments.b_scale = problem.b_scale;
    arguments.activation = no_activation;
    const auto launch = [&](const auto& of_kind) {
        return launch_of("gemm", variant.name, problem.device.target,
                         {static_cast<uint32_t>(most_workgroups(problem, config)), 1, 1}, config.threads(),
                         of_kind);
    };
    if (config.scales != Scales::none) return launch(arguments);
    if (variant.gated) {
        GatedGroupedGemmArguments gated{};
        static_cast<GemmArguments&>(gated) = arguments;
        static_cast<GroupArguments&>(gated) = arguments;
        static_cast<GatherArguments&>(gated) = arguments;
        set_gate(gated, problem, problem);
        return launch(gated);
    }
    return launch(GroupedGemmArguments{arguments, arguments});
}

hipkittens::Launch plan(const GroupedProblem& problem) {
    check(problem);
    if (!has_kernel(problem))
        throw std::invalid_argument("grouped_gemm: gfx" + std::to_string(problem.device.target) +
                                    " has no kernel for these formats and scalings");
    // What the matrix cores spend on empty rows lowers the chip's clock. Where reading weights dominates, any tile takes as long,
    // and these predictions are off by more than a tenth: twice as many rows for a seventh fewer clocks are considered equally good.
    constexpr double worth_of_rows = 0.2;
    const GroupedVariant* best = nullptr;
    double best_score = 0;
    for (const GroupedVariant& variant : all_variants) {
        if (!suits(variant, problem)) continue;
        const GemmConfig& config = variant.config;
        const double tiles = tiles_of_group(problem, config);
        const double to_find = problem.grouping == Grouping::rows
                                   ? clocks_to_find_a_tile / tiles_of_workgroup(problem, config)
                                   : 0;
        const double clocks = predicted_clocks(batch_of(problem), config, 1, {tiles, to_find});
        const double score = clocks * std::pow(tiles * config.tile_m, worth_of_rows);
        if (!best || score < best_score) best = &variant, best_score = score;
    }
    if (!best)
        throw std::invalid_argument(
            "grouped_gemm: no variant reaches this far: the rows of a tile must lie within 4 GiB and the "
            "grid "
            "have fewer than 2^32 threads");
    return launch_variant(problem, *best);
}

}  // namespace hipkittens::gemm
