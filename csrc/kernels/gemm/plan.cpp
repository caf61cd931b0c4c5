// kernels/gemm/plan.cpp: selects the variant, the number of splits and the order of workgroups.
// SPDX-License-Identifier: MIT
#include "plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "../../tiles/target.h"

namespace hipkittens::gemm {
namespace {

constexpr int64_t largest_extent = 0x7ffffe00;         // a tile past it still counts in 32 bits
constexpr int64_t largest_batches_per_launch = 65535;  // grid z
constexpr int reduce_threads = 256;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Stored {
    int64_t rows, cols;
};
Stored stored_a(const Problem& p) {
    return p.a.transposed ? Stored{p.k, p.m} : Stored{p.m, stored_elements(p.a_type, p.k)};
}
Stored stored_b(const Problem& p) {
    return p.b.transposed ? Stored{p.n, stored_elements(p.b_type, p.k)} : Stored{p.k, p.n};
}

// The stride of a single row is meaningless (PyTorch leaves any number there); the kernels need one that
// covers the row.
Matrix normalized(Matrix matrix, Stored stored) {
    if (stored.rows == 1) matrix.leading_stride = stored.cols;
    return matrix;
}

// Scales of blocks of K cannot be applied to a sum over all of K: they apply to the products, in each split separately.
bool scales_products(Scales scales) { return scales != Scales::none && scales != Scales::outer; }

void check(const Problem& p) {
    auto refuse = [](const std::string& text) { throw std::invalid_argument("gemm: " + text); };
    if (p.device.target != 942 && p.device.target != 950)
        refuse("target gfx" + std::to_string(p.device.target) + " has no kernels; gfx942 and gfx950 have");
    if (p.device.compute_units < 1 || p.device.xcds < 1) refuse("the device has no compute units or no XCDs");
    const auto is_float16 = [](ElementType type) {
        return type == ElementType::bf16 || type == ElementType::f16;
    };
    if (p.scales == Scales::none && !(is_float16(p.a_type) && p.a_type == p.b_type))
        refuse("operands are bf16 or f16, both the same");
    if (p.output == ElementType::i32 && (p.a_scale.data || p.b_scale.data || p.bias || p.activation >= 0))
        refuse("integer sums have no scales, bias or activation");
    if (p.adds && (p.scales != Scales::none || p.output != ElementType::f32 || p.bias || p.activation >= 0))
        refuse("what is added to C is f32 sums of bf16 or f16, without scales, bias or activation");
    const bool of_b = p.scales == Scales::of_b;
    if (scales_products(p.scales) && !((p.a_scale.data || of_b) && p.b_scale.data))
        refuse("scales of blocks are missing");
    if (!of_b && !p.a_scale.data != !p.b_scale.data) refuse("one operand has a scale and the other has none");
    const auto whole_groups = [](ElementType type) { return type == ElementType::fp4 || is_6_bits(type); };
    if ((whole_groups(p.a_type) || whole_groups(p.b_type)) && p.k % 32 != 0)
        refuse("k = " + std::to_string(p.k) + " is no multiple of 32, as operands of 4 and 6 bits need");
    if (p.a_type == ElementType::i8 && p.k >= exact_i8_products)
        refuse("k = " + std::to_string(p.k) +
               " is not below 131072, beyond which sums of i8 may not fit in i32");
    auto extent = [&](const char* name, int64_t value) {
        if (value < 1 || value > largest_extent)
            refuse(std::string(name) + " = " + std::to_string(value) + " is not in 1 .. 2147483136");
    };
    extent("m", p.m);
    extent("n", p.n);
    extent("k", p.k);
    extent("batch", p.batch);
    auto matrix = [&](const char* name, const Matrix& m, Stored stored) {
        if (!m.data) refuse(std::string(name) + " has no data");
        if (stored.rows > 1 && m.leading_stride < 0)
            refuse(std::string(name) + " has a negative leading stride " + std::to_string(m.leading_stride));
        if (m.batch_stride < 0) refuse(std::string(name) + " has a negative batch stride");
    };
    matrix("a", p.a, stored_a(p));
    matrix("b", p.b, stored_b(p));
    matrix("c", p.c, {p.m, p.n});
    check_panels(p);
    if (p.c.transposed) refuse("c is written row by row; compute the transposed product instead");
    if (p.m > 1 && p.c.leading_stride < p.n)
        refuse("rows of c overlap: leading stride " + std::to_string(p.c.leading_stride) +
               " < n = " + std::to_string(p.n));
    if (p.batch > 1 && p.c.batch_stride == 0) refuse("batches of c overlap: batch stride 0");
}

// 16-byte loads need rows that are 4-byte aligned and hold whole dwords (CDNA3 ISA manual 9.1: buffer
// dwords are aligned).
bool rows_are_dwords(const Matrix& m, Stored stored, int64_t batch, ElementType type) {
    const auto dwords = [&](int64_t elements) { return elements * size_of(type) % 4 == 0; };
    return reinterpret_cast<uintptr_t>(m.data) % 4 == 0 && dwords(stored.cols) &&
           (stored.rows == 1 || dwords(m.leading_stride)) && (batch == 1 || dwords(m.batch_stride));
}

Orientation orientation_of(const Problem& p) {
    return p.a.transposed ? (p.b.transposed ? Orientation::tt : Orientation::tn)
                          : (p.b.transposed ? Orientation::nt : Orientation::nn);
}

// Windows of rows and chunks of an XCD according to HipKittens' measurements (8 rows and 64 tiles at
// 8192^3), never wider than the grid is high.
TileOrder order_of(const Problem& p, const GemmConfig& config) {
    TileOrder order{};
    order.tiles_m = static_cast<uint32_t>(divide_up(p.m, config.tile_m));
    order.tiles_n = static_cast<uint32_t>(divide_up(p.n, config.tile_n));
    order.xcds = static_cast<uint32_t>(p.device.xcds);
    const uint32_t tiles = order.tiles_m * order.tiles_n;
    order.window_rows = std::min(order.tiles_m, tiles >= 1024 ? 8u : 4u);
    order.xcd_chunk = std::max(1u, std::min(order.window_rows * order.window_rows, tiles / order.xcds));
    return order;
}

const void* advanced(const void* data, int64_t elements, int size) {
    return static_cast<const char*>(data) + elements * size;
}

// The cycle model's costs of each variant; costs.def describes how they were obtained.
struct Cost {
    int target;
    ElementType a, b;
    Scales scales;
    int tile_m, tile_n, tile_k;
    RowStart row_start;
    int buffers, concurrent;
    double k_tile, k_tile_streamed, launch, round, least;
};
constexpr Cost costs[] = {
#define GEMM_COST(target, a, b, scales, tile_m, tile_n, tile_k, row_start, ...)                      \
    {kittens::target.number, ElementType::a, ElementType::b, Scales::scales, tile_m, tile_n, tile_k, \
     RowStart::row_start,    __VA_ARGS__},
#define GEMM_REDUCE_COST(...)
#include "costs.def"
#undef GEMM_COST
#undef GEMM_REDUCE_COST
};
struct ReduceCost {
    int target;
    double launch, element, partial;
};
constexpr ReduceCost reduce_costs[] = {
#define GEMM_COST(...)
#define GEMM_REDUCE_COST(target, launch, element, partial) {kittens::target.number, launch, element, partial},
#include "costs.def"
#undef GEMM_COST
#undef GEMM_REDUCE_COST
};

// Elements of one size cost the same: bf16 stands for f16, fp8 for all 8-bit types and fp6 for bf6.
ElementType costed_as(ElementType element) {
    if (element == ElementType::f16) return ElementType::bf16;
    if (element == ElementType::bf6) return ElementType::fp6;
    return size_of(element) == 1 && element != ElementType::fp4 ? ElementType::fp8 : element;
}

// Scales per column are a few more loads than those that columns share.
Scales costed_as(Scales scales) { return scales == Scales::row_blocks ? Scales::blocks : scales; }

// The entry for this many workgroups on a compute unit, or the one with the most.
const Cost& cost_of(int target, const GemmConfig& config, int64_t concurrent) {
    const Cost* most = nullptr;
    for (const Cost& cost : costs)
        if (cost.target == target && cost.a == costed_as(config.a) && cost.b == costed_as(config.b) &&
            cost.scales == costed_as(config.scales) && cost.tile_m == config.tile_m &&
            cost.tile_n == config.tile_n && cost.tile_k == config.tile_k &&
            cost.row_start == config.row_start && cost.buffers == config.buffers &&
            cost.concurrent <= concurrent)
            most = &cost;
    if (!most) throw std::logic_error("gemm: costs.def lacks a variant; run benchmarks/gemm_plan.py");
    return *most;
}
// For a compute unit that holds as many as it can.
const Cost& full_cost_of(int target, const GemmConfig& config) {
    return cost_of(target, config, std::numeric_limits<int64_t>::max());
}

}  // namespace

int concurrent_workgroups(int target, const GemmConfig& config) {
    return full_cost_of(target, config).concurrent;
}

double clocks_of_round(int target, const GemmConfig& config, int64_t k) {
    const Cost& cost = full_cost_of(target, config);
    return cost.least + static_cast<double>(divide_up(k, config.tile_k) - 1) * cost.k_tile;
}

// An estimate of the clocks that the cycle model would report for a choice: rounds of workgroups, each with its cost apart from K
// tiles. The cost of a K tile is between that of a grid whose workgroups share what they read and that of one that reads
// everything from memory, depending on how much of its loads no other workgroup has loaded. The latter is bound by memory
// bandwidth, of which each workgroup has more if there are fewer of them.
double predicted_clocks(const Problem& p, const GemmConfig& config, int splits, RowsOfTiles rows) {
    const auto [tiles_m, before] = rows;
    const double units = p.device.compute_units;
    const double tiles_n = static_cast<double>(divide_up(p.n, config.tile_n));
    const auto workgroups =
        static_cast<int64_t>(std::ceil(tiles_m * tiles_n * static_cast<double>(p.batch) * splits));
    const double k_tiles = static_cast<double>(divide_up(divide_up(p.k, config.tile_k), splits));
    const double own =
        (tiles_m * config.tile_m + tiles_n * config.tile_n) / (tiles_m * tiles_n * config.tile_n);
    const double streamed = std::min(1.0, own);
    const double units_at_work = std::min(1.0, static_cast<double>(workgroups) / units);
    auto round = [&](const Cost& cost) {
        const double from_memory = std::max(cost.k_tile, units_at_work * cost.k_tile_streamed);
        const double at_work = cost.round + k_tiles * (cost.k_tile + streamed * (from_memory - cost.k_tile));
        if (before == 0) return at_work;
        // A round is as long as one of its workgroups, which has a short K to itself.
        const double of_one = cost_of(p.device.target, config, 1).k_tile;
        return std::max(at_work, before + cost.least + (k_tiles - 1) * of_one);
    };
    const int64_t each = divide_up(workgroups, p.device.compute_units);
    const Cost& full = cost_of(p.device.target, config, each);
    const int64_t full_rounds = each / full.concurrent;
    double clocks = full.launch;
    if (full_rounds > 0) clocks += round(full) + (full_rounds - 1) * std::max(full.least, round(full));
    if (each % full.concurrent) clocks += round(cost_of(p.device.target, config, each % full.concurrent));
    if (splits > 1)
        for (const ReduceCost& cost : reduce_costs)
            if (cost.target == p.device.target)
                clocks += cost.launch + static_cast<double>(p.m) * p.n * p.batch / units *
                                            (cost.element + cost.partial * splits);
    return clocks;
}

double predicted_clocks(const Problem& p, const GemmConfig& config, int splits) {
    return predicted_clocks(p, config, splits, {static_cast<double>(divide_up(p.m, config.tile_m)), 0});
}

namespace {

constexpr int count_of(const auto& rows) { return static_cast<int>(rows.end() - rows.begin()); }
constexpr auto all_variants = [] {
    constexpr auto& plain = variants<kinds::gemm>;
    constexpr auto& adding = variants<kinds::adding>;
    constexpr auto& scaled = variants<kinds::scaled>;
    std::array<GemmVariant, count_of(plain) + count_of(adding) + count_of(scaled)> result{};
    auto* next = result.data();
    for (const auto& row : plain) *next++ = {row.name, row.targets, row.config};
    for (const auto& row : adding) *next++ = {row.name, row.targets, row.config, true};
    for (const auto& row : scaled) *next++ = {row.name, row.targets, row.config};
    return result;
}();

// For each row, the one that differs only in the order of its loads.
constexpr auto twins = [] {
    std::array<const GemmVariant*, all_variants.size()> result{};
    for (const GemmVariant& row : all_variants)
        for (const GemmVariant& other : all_variants) {
            GemmConfig config = other.config;
            config.load_order = row.config.load_order;
            if (&other != &row && config == row.config && other.adds == row.adds)
                result[&row - all_variants.data()] = &other;
        }
    return result;
}();

int64_t largest_stride_bytes(const Problem& p, const GemmConfig& config) {
    const int64_t row_a = p.a.leading_stride * size_of(config.a),
                  row_b = p.b.leading_stride * size_of(config.b);
    const int64_t a = (config.a_is_transposed() ? config.tile_k : config.tile_m) * row_a;
    const int64_t b = (config.b_is_transposed() ? config.tile_n : config.tile_k) * row_b;
    const int64_t c = config.tile_m * std::max(p.c.leading_stride, p.n) * size_of(ElementType::f32);
    if (config.schedule == Schedule::simple) return std::max({a, b, c});
    // All of K in one buffer.
    const int64_t all_a = (config.a_is_transposed() ? p.k : config.tile_m) * row_a;
    const int64_t all_b = (config.b_is_transposed() ? config.tile_n : p.k) * row_b;
    return std::max({c, all_a + stored_elements(config.a, p.k) * size_of(config.a),
                     all_b + stored_elements(config.b, p.k) * size_of(config.b)});
}

// The type of partial sums before any scale, bias or activation, which follows from the operands.
ElementType sum_type(const Problem& p) {
    return p.a_type == ElementType::i8 ? ElementType::i32 : ElementType::f32;
}

// Where the scales of a tile's rows and all blocks of K end, relative to the first one; all blocks of K are in one buffer.
int64_t largest_scale_stride_bytes(const Problem& p, const GemmConfig& config) {
    const auto span = [&](const ScaleArgument& scale, int64_t rows) -> int64_t {
        if (scale.block_rows == 32) return rows / 32 * scale.stride;
        if (!scale.data) return 0;
        return (rows / scale.block_rows * scale.stride + divide_up(p.k, config.tile_k) * scale.k_stride) * 4;
    };
    return std::max(span(p.a_scale, config.tile_m), span(p.b_scale, config.tile_n));
}

// The launch of a row, with the part of the arguments that its kind takes.
Launch product_launch(const GemmVariant& variant, int target, std::array<uint32_t, 3> grid,
                      const ScaledGemmArguments& arguments) {
    const int threads = variant.config.threads();
    if (variant.config.scales == Scales::none)
        return {launch_of("gemm", variant.name, target, grid, threads,
                          static_cast<const GemmArguments&>(arguments))};
    return {launch_of("gemm", variant.name, target, grid, threads, arguments)};
}

Launch reduce_launch(const Problem& p, std::array<uint32_t, 3> grid, const ScaledReduceArguments& arguments) {
    if (p.scales == Scales::none)
        return {launch_of("gemm", "reduce", p.device.target, grid, reduce_threads,
                          static_cast<const ReduceArguments&>(arguments))};
    return {launch_of("gemm", sum_type(p) == ElementType::i32 ? "reduce_scaled_i32" : "reduce_scaled_f32",
                      p.device.target, grid, reduce_threads, arguments)};
}

}  // namespace

std::span<const GemmVariant> gemm_variants() { return all_variants; }

void check_panels(const Problem& p) {
    const Matrix& b = p.b;
    if (!b.panel_rows) return;
    const auto refuse = [](const std::string& text) { throw std::invalid_argument("gemm: " + text); };
    if (b.panel_rows != 16 && b.panel_rows != 32)
        refuse("panels of b have " + std::to_string(b.panel_rows) + " rows; 16 and 32 are allowed");
    if (!b.transposed || is_6_bits(p.b_type))
        refuse("only a transposed b, of other than 6 bits, may be in panels");
    const int64_t length = stored_elements(p.b_type, p.k);
    if (p.n % b.panel_rows != 0 || length * size_of(p.b_type) % 16 != 0 || b.leading_stride != length)
        refuse("panels of b are whole, with rows of 16 bytes or a multiple: n = " + std::to_string(p.n) +
               ", k = " + std::to_string(p.k) + ", a row " + std::to_string(b.leading_stride) + " elements");
}

uint32_t panel_shift(const Matrix& b) {
    return b.panel_rows ? static_cast<uint32_t>(std::countr_zero(static_cast<unsigned>(b.panel_rows))) : 0;
}

bool suits(Targets targets, const GemmConfig& config, const Problem& p) {
    if (!includes(targets, p.device.target) || config.a != p.a_type || config.b != p.b_type ||
        config.scales != p.scales)
        return false;
    if (config.orientation != orientation_of(p)) return false;
    if (p.b.panel_rows && config.row_start == RowStart::element) return false;
    Problem q = p;
    q.a = normalized(p.a, stored_a(p));
    q.b = normalized(p.b, stored_b(p));
    q.c = normalized(p.c, {p.m, p.n});
    if (largest_stride_bytes(q, config) >= reach_bytes) return false;
    if (scales_products(p.scales) && largest_scale_stride_bytes(p, config) >= reach_bytes) return false;
    return config.row_start == RowStart::element || (rows_are_dwords(q.a, stored_a(p), p.batch, p.a_type) &&
                                                     rows_are_dwords(q.b, stored_b(p), p.batch, p.b_type));
}

bool suits(const GemmVariant& variant, const Problem& p) {
    const GemmConfig& config = variant.config;
    // HIP counts the threads of a grid dimension in 32 bits.
    const bool reads_b = !p.b.panel_rows || config.scales != Scales::none;
    return reads_b && (p.adds || !variant.adds) && suits(variant.targets, config, p) &&
           divide_up(p.m, config.tile_m) * divide_up(p.n, config.tile_n) * config.threads() <= 0xffffffffll;
}

Plan plan_variant(const Problem& problem, const GemmVariant& variant, int splits) {
    check(problem);
    if (!suits(variant, problem))
        throw std::invalid_argument(std::string("gemm: ") + variant.name + " cannot run this problem");
    const GemmConfig& config = variant.config;
    const int64_t k_tiles = divide_up(problem.k, config.tile_k);
    // The reduction adds the sum over the splits to C.
    if (problem.adds && variant.adds != (splits == 1))
        throw std::invalid_argument(std::string("gemm: ") + variant.name + " does not add " +
                                    std::to_string(splits) + " splits to C");
    if (splits < 1 || splits > k_tiles)
        throw std::invalid_argument("gemm: " + std::to_string(splits) + " splits of " +
                                    std::to_string(k_tiles) + " K tiles");
    const int64_t k_tiles_per_split = divide_up(k_tiles, splits);
    splits = static_cast<int>(divide_up(k_tiles, k_tiles_per_split));  // none is empty

    const Matrix a = normalized(problem.a, stored_a(problem)), b = normalized(problem.b, stored_b(problem)),
                 c = normalized(problem.c, {problem.m, problem.n});
    const bool split = splits > 1;
    const int64_t plane = problem.m * problem.n;
    Plan result;
    result.variant = variant.name;
    result.splits = splits;
    if (split) result.workspace_bytes = static_cast<uint64_t>(plane) * 4 * problem.batch * splits;

    ScaledGemmArguments arguments{};
    arguments.a = {a.data, a.leading_stride, a.batch_stride};
    arguments.b = {b.data, b.leading_stride, b.batch_stride};
    arguments.c = split ? MatrixArgument{nullptr, problem.n, plane}
                        : MatrixArgument{c.data, c.leading_stride, c.batch_stride};
    arguments.c_split_stride = split ? plane * problem.batch : 0;
    arguments.bias = split ? nullptr : problem.bias;
    arguments.m = static_cast<int32_t>(problem.m);
    arguments.n = static_cast<int32_t>(problem.n);
    arguments.k = static_cast<int32_t>(problem.k);
    arguments.k_tiles = static_cast<int32_t>(k_tiles);
    arguments.k_tiles_per_split = static_cast<int32_t>(k_tiles_per_split);
    arguments.output = split ? sum_type(problem) : problem.output;
    arguments.bias_type = problem.bias_type;
    arguments.vector_stores = problem.n % (16 / size_of(arguments.output)) == 0 &&
                              (size_of(arguments.output) == 4 ||
                               rows_are_dwords(c, {problem.m, problem.n}, problem.batch, arguments.output));
    arguments.order = order_of(problem, config);
    arguments.b_panel_shift = panel_shift(problem.b);
    arguments.activation = split ? no_activation : problem.activation;
    const bool in_products = scales_products(problem.scales);
    if (!split || in_products) {
        arguments.a_scale = problem.a_scale;
        arguments.b_scale = problem.b_scale;
    }

    const int a_size = size_of(problem.a_type), b_size = size_of(problem.b_type),
              out_size = size_of(problem.output);
    for (int64_t first = 0; first < problem.batch; first += largest_batches_per_launch) {
        const int64_t batches = std::min(problem.batch - first, largest_batches_per_launch);
        ScaledGemmArguments part = arguments;
        part.a.data = advanced(a.data, first * a.batch_stride, a_size);
        part.b.data = advanced(b.data, first * b.batch_stride, b_size);
        part.c.data =
            split ? advanced(nullptr, first * plane, 4) : advanced(c.data, first * c.batch_stride, out_size);
        if (part.a_scale.data) {
            part.a_scale.data = advanced(part.a_scale.data, first * part.a_scale.batch_stride, 4);
            part.b_scale.data = advanced(part.b_scale.data, first * part.b_scale.batch_stride, 4);
        }
        Launch launch = product_launch(variant, problem.device.target,
                                       {part.order.tiles_m * part.order.tiles_n,
                                        static_cast<uint32_t>(splits), static_cast<uint32_t>(batches)},
                                       part);
        if (split) launch.workspace_at = offsetof(GemmArguments, c) + offsetof(MatrixArgument, data);
        result.launches.push_back(std::move(launch));
    }
    if (!split) return result;

    for (int64_t first = 0; first < problem.batch; first += largest_batches_per_launch) {
        ScaledReduceArguments reduce{};
        reduce.partial = static_cast<const float*>(advanced(nullptr, first * plane, 4));
        reduce.split_stride = plane * problem.batch;
        reduce.c = {advanced(c.data, first * c.batch_stride, out_size), c.leading_stride, c.batch_stride};
        reduce.bias = problem.bias;
        reduce.m = arguments.m;
        reduce.n = arguments.n;
        reduce.splits = splits;
        reduce.output = problem.output;
        reduce.bias_type = problem.bias_type;
        reduce.adds = problem.adds;
        if (problem.a_scale.data && !in_products) {
            reduce.a_scale = problem.a_scale;
            reduce.b_scale = problem.b_scale;
            reduce.a_scale.data = advanced(reduce.a_scale.data, first * reduce.a_scale.batch_stride, 4);
            reduce.b_scale.data = advanced(reduce.b_scale.data, first * reduce.b_scale.batch_stride, 4);
        }
        reduce.activation = problem.activation;
        Launch launch = reduce_launch(
            problem,
            {static_cast<uint32_t>(divide_up(problem.n, reduce_threads)), static_cast<uint32_t>(problem.m),
             static_cast<uint32_t>(std::min(problem.batch - first, largest_batches_per_launch))},
            reduce);
        launch.workspace_at = offsetof(ReduceArguments, partial);
        result.launches.push_back(std::move(launch));
    }
    return result;
}

// Whether another row differs only in the order of loads, and has the requested order.
bool is_other_twin(const GemmVariant& variant, const Problem& problem) {
    const GemmVariant* twin = twins[&variant - all_variants.data()];
    return twin && twin->config.load_order == problem.load_order && suits(*twin, problem);
}

Plan plan(const Problem& problem) {
    check(problem);
    const GemmVariant* best = nullptr;
    int best_splits = 1;
    double best_clocks = 0;
    for (const GemmVariant& variant : all_variants) {
        if (!suits(variant, problem) || is_other_twin(variant, problem)) continue;
        const int64_t k_tiles = divide_up(problem.k, variant.config.tile_k);
        const int64_t tiles = divide_up(problem.m, variant.config.tile_m) *
                              divide_up(problem.n, variant.config.tile_n) * problem.batch;
        for (const int splits : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32}) {
            // The reduction has one row of workgroups per row of C (grid y); splits shorter than four K tiles would
            // consist only of prologue and epilogue.
            // All variants of an element type sum along K in one order.
            if (splits > 1 && (problem.device.batch_invariant || problem.m > 65535 || k_tiles / splits < 4 ||
                               tiles * splits > 4 * problem.device.compute_units))
                break;
            if (problem.adds && variant.adds != (splits == 1)) continue;
            const double clocks = predicted_clocks(problem, variant.config, splits);
            if (!best || clocks < best_clocks) {
                best = &variant;
                best_splits = splits;
                best_clocks = clocks;
            }
        }
    }
    if (!best)
        throw std::invalid_argument(
            "gemm: no variant reaches this far: the rows of a tile must lie within 4 GiB and the grid "
            "have fewer than 2^32 threads");
    return plan_variant(problem, *best, best_splits);
}

void bind_workspace(Plan& plan, void* workspace) {
    if (plan.workspace_bytes && !workspace) throw std::invalid_argument("gemm: this plan needs a workspace");
    for (Launch& launch : plan.launches) {
        if (launch.workspace_at < 0) continue;
        uint64_t address;
        std::memcpy(&address, launch.arguments.data() + launch.workspace_at, sizeof address);
        address += reinterpret_cast<uintptr_t>(workspace);
        std::memcpy(launch.arguments.data() + launch.workspace_at, &address, sizeof address);
        launch.workspace_at = -1;
    }
}

}  // namespace hipkittens::gemm
