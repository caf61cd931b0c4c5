// kernels/topk/plan.h: plans the launches of a selection of each row's greatest elements.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "../device_shape.h"
#include "../launch.h"
#include "kinds.h"

namespace hipkittens::topk {

// A pass over `columns` columns, in parts. The last pass has one part; each earlier one passes k candidates per part to the next.
struct Pass {
    int64_t columns, part_columns, parts;
};

namespace plan_detail {

// The variant for the shortest rows among those that support `columns` and k. Null if there is none.
inline const Row<kinds::select>* row_for(int target, ElementType element, int64_t columns, int64_t k) {
    for (const Row<kinds::select>& row : variants<kinds::select>)
        if (includes(row.targets, target) && row.config.element == element &&
            columns <= row.config.columns() && k <= row.config.entries())
            return &row;
    return nullptr;
}

}  // namespace plan_detail

// Throws std::invalid_argument. HIP counts the threads of a grid dimension in 32 bits.
inline void check(int64_t rows, int64_t columns, int64_t k) {
    constexpr int64_t most_rows = UINT32_MAX / 1024;
    if (k < 0 || k > std::min<int64_t>(columns, most_selected))
        throw std::invalid_argument("topk: k is " + std::to_string(k) + "; 0 .. " +
                                    std::to_string(std::min<int64_t>(columns, most_selected)) +
                                    " are allowed, the columns but not more than 2048");
    if (rows > most_rows || columns > INT32_MAX)
        throw std::invalid_argument("topk: " + std::to_string(rows) + " rows of " + std::to_string(columns) +
                                    " columns; up to " + std::to_string(most_rows) +
                                    " of 2147483647 are allowed");
}

// Rows, columns and k must be at least 1.
inline std::vector<Pass> passes(const DeviceShape& device, int64_t rows, int64_t columns, int64_t k) {
    constexpr int64_t largest = 16384, smaller = 4096;  // columns() of two kernels
    std::vector<Pass> passes;
    for (;;) {
        // Few long rows leave most of the device idle unless they are divided; a division that keeps most of the columns gains nothing.
        const bool cut = columns > smaller && k * 8 <= smaller &&
                         rows * ((columns + largest - 1) / largest) * 2 <= device.compute_units;
        const int64_t most = cut ? smaller : largest;
        const int64_t parts = (columns + most - 1) / most;
        const int64_t part_columns = parts == 1 ? columns : ((columns + parts - 1) / parts + 7) / 8 * 8;
        passes.push_back({columns, part_columns, parts});
        if (parts == 1) return passes;
        columns = parts * k;
    }
}

inline Launch plan(const DeviceShape& device, ElementType element, const Pass& pass,
                   SelectArguments arguments) {
    arguments.columns = static_cast<uint32_t>(pass.columns);
    arguments.part_columns = static_cast<uint32_t>(pass.part_columns);
    arguments.parts = static_cast<uint32_t>(pass.parts);
    const auto* row = plan_detail::row_for(device.target, element, pass.part_columns, arguments.k);
    if (!row) throw std::invalid_argument("topk: no kernel has this element type");
    const uint32_t rows = static_cast<uint32_t>(row->config.rows_per_workgroup());
    return launch_of("topk", row->name, device.target,
                     {(arguments.rows.all + rows - 1) / rows, arguments.parts, 1}, row->config.threads(),
                     arguments);
}

}  // namespace hipkittens::topk
