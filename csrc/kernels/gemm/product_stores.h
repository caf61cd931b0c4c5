// kernels/gemm/product_stores.h: moves rows of a wave's accumulators through LDS to C.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::gemm {

using namespace kittens;

// Marked as small: divisions by powers of two become shifts.
KITTENS_DEVICE int own_lane() {
    const int lane = recompute_lane_id();
    __builtin_assume(lane >= 0 && lane < wave_lanes);
    return lane;
}

constexpr int next_power_of_two(int value) {
    int power = 1;
    while (power < value) power *= 2;
    return power;
}

// Rows of the product in LDS (output_stager.h), which the operands no longer use. Runs of four columns are permuted within 128 bytes,
// the width of LDS for writes, so that adjacent rows of one column are in different banks; for single bytes, runs of 16 columns.
template <class T, int columns>
struct ProductRows {
    using element = T;
    static constexpr int size = sizeof(T);
    // Rows begin a power of two apart; the lanes between them have nothing to store.
    static constexpr int row_bytes = next_power_of_two(columns) * size,
                         run_bytes = size == 1 ? b128_bytes : 4 * size;

    KITTENS_DEVICE static constexpr int offset(int lane_row, int step, int lane_byte, int run) {
        constexpr int window = 128, rows_per_window = row_bytes < window ? window / row_bytes : 1;
        constexpr int runs = (row_bytes < window ? row_bytes : window) / run_bytes;
        const int row = step + lane_row, byte = lane_byte + run;
        return row * row_bytes + (byte ^ (row / rows_per_window % runs) * run_bytes);
    }
};

// Stores the elements of a 16-byte vector that are inside C, one by one.
template <class T>
KITTENS_DEVICE void store_elements(b128 values, buffer destination, uint32_t offset, int columns_left) {
    constexpr int count = b128_bytes / sizeof(T);
    const vec<T, count> elements = __builtin_bit_cast(vec<T, count>, values);
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const T element = elements[i];
        const uint32_t at = i < columns_left ? offset + i * static_cast<int>(sizeof(T)) : out_of_range;
        buffer_store(element, destination, at);
    }
}

// Moves a wave's bands from its accumulators to C.
template <class T, class Accumulator>
struct ProductStores {
    using Shape = typename Accumulator::shape;
    using Rows = ProductRows<T, Accumulator::cols>;
    using Stager = output_stager<Rows>;

    shared_byte* lds;
    buffer destination;
    uint32_t row_bytes;
    int columns;         // of C from the tile's first on
    int lane, row, col;  // of the wave's first band in the tile

    // `whole` as in store(). The compiler must not see that both convert alike, or it converts everything before the branch.
    template <int step, bool whole, class Convert>
    KITTENS_DEVICE void write(const Accumulator& sum, int first, const Convert& convert_values) const {
        const Coordinate own = row_layout(Shape::value(), lane, 0);
        const auto convert = [&](vec<float, 4> values) KITTENS_INLINE {
            if constexpr (!whole) values = opaque(values);
            return convert_values(values);
        };
#pragma unroll
        for (int i = 0; i < step; ++i)
#pragma unroll
            for (int j = 0; j < Accumulator::width; ++j)
                // gfx942 rounds to bf16 with compares, whose masks would not fit.
                Stager::template write<Shape, true>(lds, own, i * Shape::rows, j * Shape::cols,
                                                    sum.tiles[first + i][j], convert);
    }
    // Whole passes of the stager, or a part of one.
    static constexpr bool fill_passes(int rows) {
        return rows < Stager::rows_per_pass || rows % Stager::rows_per_pass == 0;
    }
    // Stores `count` rows of the band that begins at (band_row, band_col), which were written from row `written` on. Stores
    // outside the matrix use an offset that the buffer drops; rows past the end of the matrix are past the end of the buffer.
    template <int count, bool whole>
    KITTENS_DEVICE void store(int band_row, int band_col, int written) const {
        constexpr bool is_part = count < Stager::rows_per_pass;
        const int of_pass = lane / Stager::vectors_per_row, own_row = is_part ? of_pass % count : of_pass,
                  own_byte = lane % Stager::vectors_per_row * b128_bytes;
        const int column = col + band_col + own_byte / static_cast<int>(sizeof(T));
        const bool inside =
            own_byte < Accumulator::cols * static_cast<int>(sizeof(T)) && (!is_part || of_pass < count);
        const bool stored = inside & (column < columns);
        // Nothing is written between rows; the data half a row earlier has the same banks.
        const int read_byte = inside || is_part ? own_byte : own_byte - Rows::row_bytes / 2;
        const auto pass = [&](int first) KITTENS_INLINE {
            const b128 values = Stager::read(lds, own_row, first, read_byte);
            const uint32_t offset =
                (row + band_row + written + first + own_row) * row_bytes + column * sizeof(T);
            if constexpr (whole)
                buffer_store(values, destination, stored ? offset : out_of_range);
            else
                store_elements<T>(values, destination, offset, inside ? columns - column : 0);
        };
        if constexpr (whole) {
#pragma unroll
            for (int first = 0; first < count; first += Stager::rows_per_pass) pass(first);
        } else {
#pragma unroll 1
            for (int first = 0; first < count; first += Stager::rows_per_pass) pass(first);
        }
    }
};

}  // namespace hipkittens::gemm
