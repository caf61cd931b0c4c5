// kernels/attention/forward_output.h: rows of the output, gathered in LDS so that stores meet whole cache lines.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::attention {

// 32 rows of one wave, of 128 bytes or a multiple of 256. Its lanes hold runs of four columns of one row each; in LDS runs are permuted within 128 bytes, the
// width of LDS for writes, so that neighbouring rows of one column meet no bank twice.
template <class T, int columns>
struct OutputRows {
    static constexpr int rows = 32, row_bytes = columns * static_cast<int>(sizeof(T)),
                         bytes = rows * row_bytes;
    static constexpr int run_bytes = 4 * sizeof(T), window = 128;
    static constexpr int chunks = row_bytes / kittens::b128_bytes;  // of a row
    static constexpr int rows_per_pass = kittens::wave_lanes / chunks;
    using Run = kittens::vec<T, 4>;
    using Half = kittens::vec<uint32_t, 2>;
    static_assert(kittens::is_16bit<T> && (row_bytes == 128 || row_bytes % 256 == 0), "a chunk is two runs");

    // A phase of writes meets 16 neighbouring rows at one column; one of reads meets every other run of 256 (gfx950: 512)
    // neighbouring bytes. Of two places that share a bank there, the permutations differ in their lowest bit.
    KITTENS_DEVICE static constexpr int offset(int row, int byte) {
        const int number = row ^ (row_bytes == 128 ? row >> 1 & 1 : (byte >> 7 ^ byte >> 8) & 1);
        return row * row_bytes + (byte ^ number % (window / run_bytes) * run_bytes);
    }

    // Columns first .. of the output go to `out`, where lane 0's row is `own_row` 0; rows from rows_left and columns from
    // cols_left on are left out.
    template <class Output>
    KITTENS_DEVICE static void store(const Output& output, int first, kittens::shared_byte* lds, T* out,
                                     int64_t row_stride, int rows_left, int cols_left) {
        using Shape = typename Output::shape;
        const int lane = kittens::recompute_lane_id();
        __builtin_assume(lane >= 0 && lane < kittens::wave_lanes);
        const kittens::Coordinate own = kittens::row_layout(Shape::value(), lane, 0);
#pragma unroll
        for (int j = 0; j < columns / Shape::cols; ++j)
#pragma unroll
            for (int e = 0; e < Output::per_lane; e += 4) {
                const auto& all = output.tiles[0][first / Shape::cols + j];
                const kittens::vec<float, 4> values = {all[e], all[e + 1], all[e + 2], all[e + 3]};
                const int column = j * Shape::cols + kittens::row_layout(Shape::value(), 0, e).col + own.col;
                kittens::lds_write(__builtin_convertvector(values, Run),
                                   lds + offset(own.row, column * static_cast<int>(sizeof(T))));
            }
        // A wave's accesses to LDS take place in their order; only the compiler has to keep it.
        kittens::compiler_fence();
        const int row = lane / chunks, byte = lane % chunks * kittens::b128_bytes;
        const bool inside = byte / static_cast<int>(sizeof(T)) < cols_left;
        T* place = out + row * row_stride + byte / static_cast<int>(sizeof(T));
#pragma unroll
        for (int pass = 0; pass < rows; pass += rows_per_pass) {
            const Half low = kittens::lds_read<Half>(lds + offset(pass + row, byte));
            const Half high = kittens::lds_read<Half>(lds + offset(pass + row, byte + run_bytes));
            if (inside && pass + row < rows_left)
                *reinterpret_cast<kittens::b128*>(place) = kittens::b128{low[0], low[1], high[0], high[1]};
            place += rows_per_pass * row_stride;
        }
        kittens::compiler_fence();
    }
};

}  // namespace hipkittens::attention
