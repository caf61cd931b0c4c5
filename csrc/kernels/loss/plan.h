// kernels/loss/plan.h: plans the launch of cross entropy from its arguments.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdexcept>
#include <string>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::loss {

// Throws std::invalid_argument. A kernel counts the bytes of a row in 32 bits, and HIP the threads of a grid.
inline void check(int64_t rows, int64_t columns, ElementType element) {
    const int64_t most_rows = UINT32_MAX / largest_threads, most_columns = INT32_MAX / size_of(element);
    if (rows < 1 || rows > most_rows || columns < 1 || columns > most_columns)
        throw std::invalid_argument("loss: " + std::to_string(rows) + " rows of " + std::to_string(columns) +
                                    " columns; 1 .. " + std::to_string(most_rows) + " rows and 1 .. " +
                                    std::to_string(most_columns) + " columns are allowed");
}

// Throws std::invalid_argument.
inline Launch plan(int target, ElementType element, const CrossEntropyArguments& arguments) {
    check(arguments.rows.all, arguments.columns, element);
    const bool plain = arguments.wide && arguments.softcap == 0 && arguments.label_smoothing == 0 &&
                       !arguments.entropy && !arguments.dentropy;
    const auto reaches = [&](const CrossEntropyConfig& config) {
        return config.threads() == largest_threads || arguments.columns <= narrow_columns;
    };
    for (const auto& row : variants<kinds::cross_entropy>)
        if (includes(row.targets, target) && row.config.element == element && row.config.plain == plain &&
            reaches(row.config))
            return launch_of("loss", row.name, target, {arguments.rows.all, 1, 1}, row.config.threads(),
                             arguments);
    throw std::invalid_argument("loss: no kernel has this element type");
}

}  // namespace hipkittens::loss
