// kernels/softmax/plan.h: plans the launch of a softmax from its arguments.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::softmax {

// A kernel counts the bytes of a row in 32 bits, and HIP the threads of a grid.
constexpr int64_t most_columns(ElementType element) {
    return std::min<int64_t>(largest_columns, INT32_MAX / size_of(element));
}
constexpr int64_t most_rows(int64_t columns) {
    constexpr int most_threads = 16 * 64;
    return columns <= short_columns ? INT32_MAX : UINT32_MAX / most_threads;
}
// Throws std::invalid_argument.
inline void check(int64_t rows, int64_t columns, ElementType element) {
    if (columns >= 1 && columns <= most_columns(element) && rows >= 1 && rows <= most_rows(columns)) return;
    throw std::invalid_argument("softmax: " + std::to_string(rows) + " rows of " + std::to_string(columns) +
                                " columns; 1 .. " + std::to_string(most_columns(element)) +
                                " columns are allowed, and 1 .. " + std::to_string(most_rows(columns)) +
                                " rows of these");
}

// For the short and the long kind of the same direction. Throws std::invalid_argument.
template <class Short, class Long>
Launch plan(int target, ElementType element, SoftmaxArguments arguments) {
    check(arguments.rows.all, arguments.columns, element);
    const uint32_t rows = arguments.rows.all, columns = arguments.columns;
    if (columns <= short_columns) {
        // A power of two of lanes, with 8 columns each.
        arguments.lane_bits = std::bit_width((columns - 1) / 8);
        for (const Row<Short>& row : variants<Short>) {
            if (row.config.element != element || row.config.wide != arguments.wide) continue;
            const uint32_t together = (short_threads >> arguments.lane_bits) * row.config.rows_of_lane;
            return launch_of("softmax", row.name, target, {(rows - 1) / together + 1, 1, 1}, short_threads,
                             arguments);
        }
    }
    // The smallest that holds the row, or else the largest.
    const Row<Long>* best = nullptr;
    for (const Row<Long>& row : variants<Long>) {
        if (row.config.element != element) continue;
        const uint32_t capacity = row.config.capacity();
        const uint32_t of_best = best ? best->config.capacity() : 0;
        if (of_best < columns ? capacity > of_best : capacity >= columns && capacity < of_best) best = &row;
    }
    if (!best) throw std::invalid_argument("softmax: no kernel has this element type");
    return launch_of("softmax", best->name, target, {rows, 1, 1}, best->config.waves * 64, arguments);
}

}  // namespace hipkittens::softmax
