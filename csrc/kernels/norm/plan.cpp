// kernels/norm/plan.cpp: selects the variant for a row, and the number of workers that share the rows.
// SPDX-License-Identifier: MIT
#include "plan.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace hipkittens::norm {
namespace {

// Enough for every wave slot of the largest device, and few enough for a grid of 32-bit thread counts.
constexpr uint32_t largest_forward_workers = 1 << 18;

// A row that a wave reads in this many iterations does not yet justify a workgroup.
constexpr int turns_of_a_wave = 4;

uint32_t divide_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

struct Choice {
    const char* name = nullptr;
    RowShape shape{};
};

// The smallest of a kind that fits a row; without a name if there is none.
template <class Kind>
Choice find_variant(ElementType element, int64_t cols) {
    Choice best;
    for (const auto& [name, targets, config] : variants<Kind>) {
        if (config.element != element || config.shape().capacity() < cols) continue;
        if (!best.name || config.shape().capacity() < best.shape.capacity()) best = {name, config.shape()};
    }
    return best;
}

template <class Kind>
Choice variant_for(ElementType element, int64_t cols) {
    const Choice best = find_variant<Kind>(element, cols);
    if (!best.name) throw std::invalid_argument("norm: no kernel for rows of " + std::to_string(cols));
    return best;
}

template <class Arguments>
Launch launch_of(const std::string& variant, int target, uint32_t x, uint32_t y, int threads,
                 const Arguments& arguments) {
    return hipkittens::launch_of("norm", variant, target, {x, y, 1}, threads, arguments);
}

const char* name(ElementType element) {
    return element == ElementType::bf16 ? "bf16" : element == ElementType::f16 ? "f16" : "f32";
}

// Whether the kernels for usual arguments support these: FusedConfig.
bool is_usual(const FusedArguments& arguments, ElementType element) {
    const bool has_parameters = arguments.weight || arguments.bias;
    return arguments.wide && arguments.wide_parameters && (arguments.wide_y || !arguments.y) &&
           (!has_parameters || arguments.parameter_type == element) && !arguments.x_bias &&
           !arguments.dropout.seed && arguments.rows.inner == arguments.rows.all;
}

}  // namespace

void check(int64_t rows, int64_t cols) {
    if (cols < 1 || cols > largest_cols)
        throw std::invalid_argument("norm: rows have " + std::to_string(cols) + " elements; 1 .. " +
                                    std::to_string(largest_cols) + " are allowed");
    if (rows < 1 || rows > 0x7fffffff)
        throw std::invalid_argument("norm: " + std::to_string(rows) + " rows; 1 .. 2147483647 are allowed");
}

Launch plan_forward(int target, ElementType element, const ForwardArguments& given) {
    check(given.rows.count, given.rows.cols);
    const float per_column = 1.0f / static_cast<float>(given.rows.cols);
    const int64_t size = element == ElementType::f32 ? 4 : 2;
    const bool one_step = given.rows.inner_count == given.rows.count;
    const bool wide = given.wide && given.wide_parameters, plain = wide && one_step;
    const int64_t cols = given.rows.cols;
    const Choice plain_variant = wide            ? given.centred ? find_variant<kinds::layer>(element, cols)
                                                                 : find_variant<kinds::rms>(element, cols)
                                 : given.centred ? find_variant<kinds::odd_layer>(element, cols)
                                                 : find_variant<kinds::odd_rms>(element, cols);
    // The rows of a wave are within half of what 32 bits reach.
    const bool short_steps = std::max(given.x.inner, given.residual.inner) * size <= INT32_MAX / 4;
    // A plain kernel has no loop over rows, and HIP counts the threads of a grid in 32 bits.
    const auto one_launch = [&](const RowShape& shape) {
        return static_cast<uint64_t>(divide_up(given.rows.count, shape.rows_per_workgroup())) *
                   shape.threads() <=
               UINT32_MAX;
    };
    if (one_step && plain_variant.name && one_launch(plain_variant.shape) && short_steps && given.weight &&
        given.parameter_type == element && !given.dropout.seed) {
        PlainArguments arguments{};
        arguments.rows = given.rows.count;
        arguments.x_stride = static_cast<uint32_t>(given.x.inner * size);
        arguments.residual_stride = static_cast<uint32_t>(given.residual.inner * size);
        arguments.row_bytes = static_cast<uint32_t>(given.rows.cols * size);
        arguments.per_column = per_column;
        arguments.epsilon = given.epsilon;
        arguments.x = given.x.data;
        arguments.residual = given.residual.data;
        arguments.has_residual = given.residual.data != nullptr;
        arguments.needs_statistics = given.rstd != nullptr;
        arguments.weight = given.weight;
        arguments.bias = given.bias;
        arguments.y = given.y;
        arguments.sum = given.sum;
        arguments.mean = given.mean;
        arguments.rstd = given.rstd;
        return launch_of(plain_variant.name, target,
                         divide_up(given.rows.count, plain_variant.shape.rows_per_workgroup()), 1,
                         plain_variant.shape.threads(), arguments);
    }
    const Choice variant = variant_for<kinds::forward>(element, given.rows.cols);
    ForwardArguments arguments = given;
    const uint32_t together = variant.shape.rows_per_workgroup();
    const uint32_t groups = divide_up(std::min(given.rows.count, largest_forward_workers), together);
    arguments.workers = groups * together;
    arguments.plain = plain && (given.parameter_type == element || given.parameter_type == ElementType::f32);
    arguments.per_column = per_column;
    return launch_of(variant.name, target, groups, 1, variant.shape.threads(), arguments);
}

Launch plan_fused(int target, ElementType element, FusedPair pair) {
    const bool two = pair.second.columns > 0;
    const uint32_t columns = std::max(pair.first.columns, pair.second.columns);
    check(pair.first.rows.all, columns);
    // The columns of a row that are read or written.
    const quantize::QuantizeArguments& codes = pair.first.quantization;
    const int64_t all =
        std::max({columns, pair.first.y_columns, pair.second.y_columns,
                  pair.first.codes == Codes::group ? codes.padded_groups * codes.group_lanes * 8 : columns});
    const bool usual = is_usual(pair.first, element) && (!two || is_usual(pair.second, element));
    Choice variant;
    std::tuple<bool, bool, int> best;
    for (const auto& [name, targets, config] : variants<kinds::fused>) {
        const RowShape shape = config.shape();
        const bool holds = shape.capacity() * (config.usual ? 1 : turns_of_a_wave) >= all;
        if (config.element != element || (config.usual && !(usual && holds))) continue;
        // Usual variants first, then those that hold the row, then the smaller ones, or else the largest.
        const std::tuple rank(config.usual, holds, holds ? -shape.capacity() : shape.capacity());
        if (variant.name && rank <= best) continue;
        variant = {name, shape};
        best = rank;
    }
    const uint32_t together = variant.shape.rows_per_workgroup();
    const uint32_t rows = std::max(pair.first.rows.all, pair.first.quantization.padded_rows);
    const uint32_t groups = divide_up(std::min(rows, largest_forward_workers), together);
    for (FusedArguments* each : {&pair.first, &pair.second}) {
        if (each->columns == 0) continue;
        each->workers = groups * together;
        each->per_column = 1.0f / static_cast<float>(each->columns);
    }
    return launch_of(variant.name, target, groups, two ? 2 : 1, variant.shape.threads(), pair);
}

uint32_t backward_workers(int64_t rows, int64_t cols) {
    // Two workgroups per compute unit of the largest device. Short rows have one wave each, with four per workgroup.
    const int64_t together =
        find_variant<kinds::backward>(ElementType::bf16, cols).shape.rows_per_workgroup();
    return static_cast<uint32_t>(std::min<int64_t>((rows + together - 1) / together, 512));
}

std::vector<Launch> plan_backward(int target, ElementType element, const BackwardArguments& given,
                                  void* weight_result, void* bias_result) {
    check(given.rows.count, given.rows.cols);
    const Choice variant = variant_for<kinds::backward>(element, given.rows.cols);
    const uint32_t together = variant.shape.rows_per_workgroup();
    const uint32_t workers = backward_workers(given.rows.count, given.rows.cols);
    std::vector<Launch> launches;
    BackwardArguments arguments = given;
    // For long rows, nothing is carried from row to row.
    const uint32_t groups =
        sums_columns(variant.shape) ? workers : std::min(given.rows.count, largest_forward_workers);
    arguments.workers = groups * together;
    arguments.plain = given.wide && given.wide_parameters && given.rows.inner_count == given.rows.count &&
                      given.weight && given.parameter_type == element && !given.dropout.seed;
    arguments.per_column = 1.0f / static_cast<float>(given.rows.cols);
    launches.push_back(launch_of(variant.name, target, groups, 1, variant.shape.threads(), arguments));
    if (!given.partial_weight && !given.partial_bias) return launches;
    if (!sums_columns(variant.shape)) {
        arguments.workers = workers;
        launches.push_back(launch_of(std::string("columns_") + name(element), target,
                                     divide_up(given.rows.cols, columns_per_wave),
                                     divide_up(workers, column_waves), column_waves * 64, arguments));
    }
    ReduceArguments reduce{};
    uint32_t results = 0;
    auto add = [&](const float* partial, void* result) {
        if (!partial) return;
        reduce.partial[results] = partial;
        reduce.result[results++] = result;
    };
    add(given.partial_weight, weight_result);
    add(given.partial_bias, bias_result);
    reduce.workers = workers;
    reduce.cols = given.rows.cols;
    reduce.type = given.parameter_type;
    launches.push_back(launch_of("reduce", target, divide_up(given.rows.cols, reduce_columns), results,
                                 reduce_waves * 64, reduce));
    return launches;
}

}  // namespace hipkittens::norm
