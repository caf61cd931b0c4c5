// kernels/row_columns.h: the 8 columns of a row that a thread computes, for threads without other work.
// SPDX-License-Identifier: MIT
#pragma once
#include "../tiles/row_chunk.h"
#include "divisor.h"

namespace hipkittens {

inline constexpr int thread_columns = kittens::chunk_elements;

// There are fewer at the end of a row.
template <class T>
class RowColumns {
    template <class V>
    using global = __attribute__((address_space(1))) V*;
    // 16-byte accesses need dword alignment.
    typedef kittens::raw_eight<T> vector __attribute__((aligned(4)));

    uint32_t count_;
    bool whole_;

    KITTENS_DEVICE RowColumns(uint32_t row, uint32_t thread, uint32_t threads_per_row, uint32_t rows,
                              uint32_t columns, bool aligned)
        : row(row), first((thread - row * threads_per_row) * thread_columns) {
        count_ = row < rows && first < columns ? columns - first : 0;
        whole_ = aligned && count_ >= thread_columns;
    }

  public:
    uint32_t row, first;

    // The position of a thread of the launch, with `threads_per_row` for each of `rows`. aligned: rows are 4-byte aligned.
    KITTENS_DEVICE RowColumns(uint32_t thread, const Divisor& threads_per_row, uint32_t rows,
                              uint32_t columns, bool aligned)
        : RowColumns(threads_per_row.quotient(thread), thread, threads_per_row.value, rows, columns,
                     aligned) {}
    // For a known position: no division.
    KITTENS_DEVICE static RowColumns at(uint32_t row, uint32_t first, uint32_t rows, uint32_t columns,
                                        bool aligned) {
        return {row, first / thread_columns, 0, rows, columns, aligned};
    }
    KITTENS_DEVICE bool none() const { return count_ == 0; }
    KITTENS_DEVICE uint32_t count() const { return count_; }
    KITTENS_DEVICE bool whole() const { return whole_; }
    KITTENS_DEVICE bool has(uint32_t i) const { return i < count_; }

    // Elements past the end are 0. In memory format: a conversion waits for the load, so all loads are issued before it.
    KITTENS_DEVICE kittens::raw_eight<T> load_raw(const void* data, int64_t offset) const {
        auto* from = (global<const T>)data + offset + first;
        if (whole_) return *(global<const vector>)from;
        kittens::raw_eight<T> values = T();
#pragma unroll
        for (uint32_t i = 0; i < thread_columns; ++i)
            if (i < count_) values[i] = from[i];
        return values;
    }
    KITTENS_DEVICE kittens::eight load(const void* data, int64_t offset) const {
        return kittens::widened(load_raw(data, offset));
    }
    KITTENS_DEVICE void store(kittens::eight values, void* data, int64_t offset) const {
        auto* to = (global<T>)data + offset + first;
        if (whole_) {
            *(global<vector>)to = __builtin_convertvector(values, kittens::raw_eight<T>);
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < thread_columns; ++i)
            if (i < count_) to[i] = static_cast<T>(values[i]);
    }
};

}  // namespace hipkittens
