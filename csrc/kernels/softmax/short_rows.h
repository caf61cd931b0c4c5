// kernels/softmax/short_rows.h: rows that share a wave, each in 2^n of its lanes.
// SPDX-License-Identifier: MIT
#pragma once
#include "kinds.h"
#include "lane_columns.h"

namespace hipkittens::softmax {

// Reduces each value over 2^lane_bits adjacent lanes, with the same bits in each of them: every step combines two equal halves.
template <class T, int count, class Combine>
KITTENS_DEVICE void combine_lanes_of_row(T (&values)[count], uint32_t lane_bits, const Combine& combine) {
    const auto step = [&](const auto& exchange) {
#pragma unroll
        for (T& value : values) value = combine(value, exchange(value));
    };
    if (lane_bits > 0) step([](T value) { return kittens::permute_in_4<1, 0, 3, 2>(value); });
    if (lane_bits > 1) step([](T value) { return kittens::permute_in_4<2, 3, 0, 1>(value); });
    if (lane_bits > 2) step([](T value) { return kittens::mirror_in_8(value); });
    if (lane_bits > 3) step([](T value) { return kittens::rotate_in_16<8>(value); });
    if (lane_bits > 4) step([](T value) { return kittens::exchange_16(value); });
    if (lane_bits > 5) step([](T value) { return kittens::exchange_32(value); });
}
template <class T>
KITTENS_DEVICE T sum(T a, T b) {
    return a + b;
}

// The rows of a lane.
template <class T, bool wide, int count>
struct ShortRows {
    LaneColumns<T, wide> lane;
    uint32_t first, step, rows;

    KITTENS_DEVICE explicit ShortRows(const SoftmaxArguments& arguments)
        : lane{kittens::thread_id() & ((1u << arguments.lane_bits) - 1), 1u << arguments.lane_bits,
               arguments.columns},
          step(short_threads >> arguments.lane_bits),
          rows(arguments.rows.all) {
        first = kittens::workgroup_id_x() * step * count + (kittens::thread_id() >> arguments.lane_bits);
    }
    KITTENS_DEVICE uint32_t row(int n) const { return first + n * step; }

    // Past the last row, that row is read again.
    KITTENS_DEVICE void load(kittens::raw_eight<T> (&into)[count], const StridedRows& from,
                             const RowCounts& counts) const {
#pragma unroll
        for (int n = 0; n < count; ++n)
            into[n] = lane.load(from.data, from.offset(row(n) < rows ? row(n) : rows - 1, counts));
    }
    KITTENS_DEVICE void store(int n, eight values, void* result) const {
        if (row(n) < rows) lane.store(values, result, static_cast<int64_t>(row(n)) * lane.columns);
    }
};

}  // namespace hipkittens::softmax
