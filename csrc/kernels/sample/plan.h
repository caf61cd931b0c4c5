// kernels/sample/plan.h: plans the launch of choosing one column of each row.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::sample {

// Throws std::invalid_argument. A kernel counts the bytes of a float32 row in 32 bits, including one iteration of its loop past the
// end, and HIP the threads of a grid.
inline void check(int64_t rows, int64_t columns) {
    constexpr int64_t most_rows = UINT32_MAX / threads, most_columns = INT32_MAX / 4;
    if (rows > most_rows || columns < 1 || columns > most_columns)
        throw std::invalid_argument("sample: " + std::to_string(rows) + " rows of " +
                                    std::to_string(columns) + " columns; up to " + std::to_string(most_rows) +
                                    " rows and 1 .. " + std::to_string(most_columns) +
                                    " columns are allowed");
}

// The number of workgroups that share a row, and of 64-bit words of workspace per row if there are several: few rows alone
// would leave most compute units idle, and a share should be at least one iteration of the loop.
constexpr int64_t parts(int64_t rows, int64_t columns) {
    constexpr int64_t turn = threads * 8;
    const int64_t wanted = enough_workgroups / std::max<int64_t>(rows, 1);
    return std::clamp<int64_t>(wanted, 1, std::min<int64_t>((columns + turn - 1) / turn, most_parts));
}

// In order. Sets `parts` and `share`; bests has as many words as `parts` returns. Throws std::invalid_argument.
inline std::vector<Launch> plan(int target, ElementType element, ChooseArguments arguments) {
    check(arguments.rows.all, arguments.columns);
    const int64_t wanted = parts(arguments.rows.all, arguments.columns);
    const int64_t chunks = (int64_t{arguments.columns} + 7) / 8, share = (chunks + wanted - 1) / wanted;
    arguments.share = static_cast<uint32_t>(share * 8);
    arguments.parts = static_cast<uint32_t>((chunks + share - 1) / share);
    std::vector<Launch> launches;
    for (const auto& row : variants<kinds::choose>)
        if (includes(row.targets, target) && row.config.element == element)
            launches.push_back(launch_of("sample", row.name, target, {arguments.rows.all, arguments.parts, 1},
                                         threads, arguments));
    if (launches.empty()) throw std::invalid_argument("sample: no kernel has this element type");
    if (arguments.parts > 1)
        for (const auto& row : variants<kinds::join>)
            if (includes(row.targets, target))
                launches.push_back(launch_of("sample", row.name, target, {arguments.rows.all, 1, 1},
                                             join_threads, arguments));
    return launches;
}

}  // namespace hipkittens::sample
