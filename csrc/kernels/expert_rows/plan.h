// kernels/expert_rows/plan.h: plans the launch of a row move from its arguments.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdexcept>
#include <string>
#include <type_traits>

#include "../launch.h"
#include "../row_threads.h"
#include "kinds.h"

namespace hipkittens::expert_rows {

// For pairs, each with one wave in dot. Throws std::invalid_argument.
inline void check_pairs(int64_t pairs) {
    constexpr int64_t largest = (UINT32_MAX - threads) / 64;
    if (pairs > largest)
        throw std::invalid_argument("expert_rows: " + std::to_string(pairs) +
                                    " pairs of a token and a choice; up to " + std::to_string(largest) +
                                    " are allowed");
}

// Sets `threads_per_row`. Throws std::invalid_argument.
template <class Kind>
Launch plan(int target, ElementType element, ExpertRowsArguments arguments) {
    arguments.threads_per_row = divisor_of(static_cast<uint32_t>(row_threads(arguments.columns)));
    const uint32_t rows =
        std::is_same_v<Kind, kinds::gather> ? rows_of_threads(arguments.count) : arguments.count;
    const uint32_t all = rows * arguments.threads_per_row.value;
    const uint32_t grid = std::is_same_v<Kind, kinds::dot> ? (arguments.count + waves - 1) / waves
                                                           : (all + threads - 1) / threads;
    for (const Row<Kind>& row : variants<Kind>)
        if (includes(row.targets, target) && row.config.element == element)
            return launch_of("expert_rows", row.name, target, {grid, 1, 1}, threads, arguments);
    throw std::invalid_argument("expert_rows: no kernel has this element type");
}

}  // namespace hipkittens::expert_rows
