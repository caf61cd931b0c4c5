// kernels/quantization/plan.cpp: the number of scales, and the assignment of columns to threads.
// SPDX-License-Identifier: MIT
#include "plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace hipkittens::quantize {
namespace {

// A block of shuffled scales.
constexpr int64_t shuffled_rows = 256, shuffled_groups = 8;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// HIP counts the threads of a grid dimension in 32 bits.
void check_threads(int64_t rows, int64_t threads_per_row, int64_t columns) {
    if (threads_per_row > (int64_t(UINT32_MAX) - threads) / rows)
        throw std::invalid_argument("quantize: " + std::to_string(rows) + " rows of " +
                                    std::to_string(columns) +
                                    " columns; at most 34359736320 elements are allowed");
}

}  // namespace

int64_t group_threads(int64_t columns, int64_t padded_groups, int64_t group) {
    return std::max(divide_up(columns, columns_of_thread), padded_groups * (group / columns_of_thread));
}

ScaleCount banded_scales(int64_t rows, int64_t ranges, int64_t groups) {
    return {round_up(rows, band_rows) + ranges * band_rows, round_up(groups, shuffled_groups)};
}

ScaleCount scale_count(int64_t rows, int64_t columns, Granularity granularity, int64_t group,
                       ScaleLayout layout, int64_t matrix_rows) {
    if (rows < 1 || columns < 1 || rows > INT32_MAX || columns > INT32_MAX)
        throw std::invalid_argument("quantize: " + std::to_string(rows) + " rows of " +
                                    std::to_string(columns) + " columns; 1 .. 2147483647 are allowed");
    if (granularity == Granularity::tensor) {
        check_threads(rows, divide_up(columns, columns_of_thread), columns);
        return {1, 1};
    }
    if (granularity == Granularity::row) {
        if (rows > int64_t(UINT32_MAX) / 256)
            throw std::invalid_argument("quantize: " + std::to_string(rows) +
                                        " rows with a scale each; 1 .. 16777215 are allowed");
        return {rows, 1};
    }
    if (granularity == Granularity::block) {
        if (matrix_rows < 1 || rows % matrix_rows)
            throw std::invalid_argument("quantize: " + std::to_string(rows) + " rows in matrices of " +
                                        std::to_string(matrix_rows));
        const ScaleCount count{rows / matrix_rows * divide_up(matrix_rows, block_rows),
                               divide_up(columns, block_columns)};
        check_threads(count.rows, count.groups * threads, columns);
        return count;
    }
    if (group != 32 && group != 64 && group != 128)
        throw std::invalid_argument("quantize: groups of " + std::to_string(group) +
                                    "; 32, 64 and 128 are allowed");
    ScaleCount count{rows, divide_up(columns, group)};
    if (layout == ScaleLayout::shuffled)
        count = {round_up(count.rows, shuffled_rows), round_up(count.groups, shuffled_groups)};
    check_threads(count.rows, group_threads(columns, count.groups, group), columns);
    return count;
}

QuantizeArguments laid_out(Granularity granularity, int64_t group, QuantizeArguments arguments) {
    const int64_t columns = arguments.columns;
    const ScaleCount padded =
        scale_count(arguments.rows.all, columns, granularity, group, arguments.layout, arguments.matrix_rows);
    arguments.padded_rows = static_cast<uint32_t>(padded.rows);
    arguments.padded_groups = static_cast<uint32_t>(padded.groups);
    const bool grouped = granularity == Granularity::group;
    arguments.groups = grouped                             ? static_cast<uint32_t>(divide_up(columns, group))
                       : granularity == Granularity::block ? static_cast<uint32_t>(padded.groups)
                                                           : 1;
    arguments.group_lanes = grouped ? static_cast<uint32_t>(group / columns_of_thread) : 0;
    return arguments;
}

}  // namespace hipkittens::quantize
