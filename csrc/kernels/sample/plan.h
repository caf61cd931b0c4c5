// kernels/sample/plan.h: from the choice of one column of each row to its launch.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdexcept>
#include <string>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::sample {

// Throws std::invalid_argument. A kernel counts the bytes of a row of float32 in 32 bits, with a turn of its loop behind the end, and
// HIP the threads of a grid.
inline void check(int64_t rows, int64_t columns) {
    constexpr int64_t most_rows = UINT32_MAX / threads, most_columns = INT32_MAX / 4;
    if (rows > most_rows || columns < 1 || columns > most_columns)
        throw std::invalid_argument("sample: " + std::to_string(rows) + " rows of " +
                                    std::to_string(columns) + " columns; up to " + std::to_string(most_rows) +
                                    " rows and 1 .. " + std::to_string(most_columns) +
                                    " columns are allowed");
}

inline Launch plan(int target, ElementType element, const ChooseArguments& arguments) {
    check(arguments.rows.all, arguments.columns);
    for (const auto& row : variants<kinds::choose>)
        if (includes(row.targets, target) && row.config.element == element)
            return launch_of("sample", row.name, target, {arguments.rows.all, 1, 1}, threads, arguments);
    throw std::invalid_argument("sample: no kernel has this element type");
}

}  // namespace hipkittens::sample
