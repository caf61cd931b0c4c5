// kernels/scaled_square/plan.h: from the arguments of scaled_square to its launch.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdexcept>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::scaled_square {

template <class Kind>
Launch plan(int target, ElementType element, const SquareArguments& arguments) {
    const auto workgroups =
        static_cast<uint32_t>((arguments.count + workgroup_threads - 1) / workgroup_threads);
    for (const Row<Kind>& row : variants<Kind>)
        if (row.config.element == element)
            return launch_of("scaled_square", row.name, target, {workgroups, 1, 1}, workgroup_threads,
                             arguments);
    throw std::invalid_argument("scaled_square: no kernel has this element type");
}

}  // namespace hipkittens::scaled_square
