// kernels/mul_add/plan.h: plans the launch of a x + b from its arguments.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdexcept>
#include <string>

#include "../launch.h"
#include "../row_threads.h"
#include "kinds.h"

namespace hipkittens::mul_add {

// Throws std::invalid_argument.
inline void check(int64_t rows, int64_t columns) { check_row_threads("mul_add", rows, columns, threads); }

// Sets `threads_per_row`. Throws std::invalid_argument.
inline Launch plan(int target, ElementType element, MulAddArguments arguments) {
    check(arguments.rows.all, arguments.columns);
    arguments.threads_per_row = divisor_of(static_cast<uint32_t>(row_threads(arguments.columns)));
    const uint32_t all = arguments.rows.all * arguments.threads_per_row.value;
    for (const auto& row : variants<kinds::mul_add>)
        if (includes(row.targets, target) && row.config.element == element)
            return launch_of("mul_add", row.name, target, {(all + threads - 1) / threads, 1, 1}, threads,
                             arguments);
    throw std::invalid_argument("mul_add: no kernel has this element type");
}

}  // namespace hipkittens::mul_add
