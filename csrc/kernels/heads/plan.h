// kernels/heads/plan.h: plans the launch of a copy from its parts.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::heads {

constexpr int64_t row_threads(int64_t units) { return (units + units_of_thread - 1) / units_of_thread; }

// Throws std::invalid_argument. HIP counts the threads of a grid dimension in 32 bits, here those of four parts.
inline void check(int64_t rows, int64_t units) {
    constexpr int64_t largest = UINT32_MAX / most_parts - threads;
    if (rows < 1 || units < 1 || units > INT32_MAX || row_threads(units) > largest / rows)
        throw std::invalid_argument("heads: " + std::to_string(rows) + " rows of " +
                                    std::to_string(units * unit_bytes) + " bytes; 1 .. " +
                                    std::to_string(largest) +
                                    " are allowed of rows x bytes / 16 rounded up, and 4294967294 bytes");
}

// For one to four parts, each with rows; sets `threads_per_row` and `first_workgroup`.
inline Launch plan(int target, std::vector<Part> parts) {
    CopyArguments arguments{};
    uint32_t workgroups = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
        Part& part = arguments.parts[i] = parts[i];
        check(part.rows.all, part.units);
        part.threads_per_row = static_cast<uint32_t>(row_threads(part.units));
        part.first_workgroup = workgroups;
        workgroups += (part.rows.all * part.threads_per_row + threads - 1) / threads;
    }
    for (size_t i = parts.size(); i < most_parts; ++i) arguments.parts[i].first_workgroup = workgroups;
    for (const auto& row : variants<kinds::copy>)
        if (includes(row.targets, target))
            return launch_of("heads", row.name, target, {workgroups, 1, 1}, threads, arguments);
    throw std::invalid_argument("heads: no kernel for this target");
}

}  // namespace hipkittens::heads
