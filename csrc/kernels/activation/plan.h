// kernels/activation/plan.h: plans the launch of an activation from its arguments.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdexcept>
#include <string>

#include "../launch.h"
#include "../row_threads.h"
#include "kinds.h"

namespace hipkittens::activation {

// Throws std::invalid_argument.
inline void check(int64_t rows, int64_t columns) { check_row_threads("activation", rows, columns, threads); }

// For the kind forward or backward; sets `threads_per_row`. Throws std::invalid_argument.
template <class Kind>
Launch plan(int target, ElementType element, bool gated, ActivationArguments arguments) {
    check(arguments.rows.all, arguments.columns);
    arguments.threads_per_row = divisor_of(static_cast<uint32_t>(row_threads(arguments.columns)));
    const uint32_t all = arguments.rows.all * arguments.threads_per_row.value;
    for (const Row<Kind>& row : variants<Kind>)
        if (includes(row.targets, target) && row.config.element == element && row.config.gated == gated)
            return launch_of("activation", row.name, target, {(all + threads - 1) / threads, 1, 1}, threads,
                             arguments);
    throw std::invalid_argument("activation: no kernel has this element type");
}

}  // namespace hipkittens::activation
