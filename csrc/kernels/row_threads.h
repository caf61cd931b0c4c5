// kernels/row_threads.h: the number of threads of a launch over rows, where each has the columns of row_columns.h.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace hipkittens {

inline constexpr int64_t row_columns_of_thread = 8;

constexpr int64_t row_threads(int64_t columns) {
    return (columns + row_columns_of_thread - 1) / row_columns_of_thread;
}

// For an operation with this many threads per workgroup. Throws std::invalid_argument. HIP counts the threads of a grid dimension
// in 32 bits.
inline void check_row_threads(const std::string& operation, int64_t rows, int64_t columns, int threads) {
    const int64_t largest = int64_t{UINT32_MAX} - threads;
    if (rows < 1 || columns < 1 || columns > INT32_MAX || row_threads(columns) > largest / rows)
        throw std::invalid_argument(operation + ": " + std::to_string(rows) + " rows of " +
                                    std::to_string(columns) + " columns; 1 .. " + std::to_string(largest) +
                                    " are allowed of rows x columns / 8 rounded up, and 2147483647 columns");
}

}  // namespace hipkittens
