// kernels/strided_rows.h: rows of a tensor, indexed over up to three dimensions.
// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace hipkittens {

// row = (outer * middle + position in middle) * inner + position in inner
struct RowCounts {
    uint32_t all, middle, inner;
};

// Unit stride inside a row; the other strides in elements.
struct StridedRows {
    const void* data;
    int64_t outer, middle, inner;

    constexpr int64_t offset(uint32_t row, const RowCounts& counts) const {
        if (counts.inner == counts.all) return row * inner;  // no division if there is only one dimension
        const uint32_t rest = row / counts.inner;
        return rest / counts.middle * outer + rest % counts.middle * middle + row % counts.inner * inner;
    }
};

}  // namespace hipkittens
