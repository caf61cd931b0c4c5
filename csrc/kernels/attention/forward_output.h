// kernels/attention/forward_output.h: rows of O in LDS, from which they are stored as whole cache lines.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::attention {

using namespace kittens;

// 32 rows of one wave, of 128 bytes or a multiple of 256 (output_stager.h). Runs of four columns are permuted within 128
// bytes, the width of LDS for writes, so that adjacent rows of one column have no bank conflicts.
template <class T, int columns>
struct OutputRows {
    using element = T;
    static constexpr int rows = 32, row_bytes = columns * static_cast<int>(sizeof(T)),
                         run_bytes = 4 * sizeof(T), window = 128;
    using Stager = output_stager<OutputRows>;
    static_assert(is_16bit<T> && (row_bytes == 128 || row_bytes % 256 == 0), "16 bytes are two runs");

    // A phase of writes covers 16 adjacent rows at one column; a phase of reads covers every other run of 256 (gfx950:
    // 512) contiguous bytes. For two addresses in it that share a bank, the permutations differ in their lowest bit.
    KITTENS_DEVICE static constexpr int offset(int lane_row, int step, int lane_byte, int run) {
        const int row = lane_row + step, byte = lane_byte + run;
        const int number = row ^ (row_bytes == 128 ? row >> 1 & 1 : (byte >> 7 ^ byte >> 8) & 1);
        return row * row_bytes + (byte ^ number % (window / run_bytes) * run_bytes);
    }

    // Stores columns first .. of the output to `out`, where row 0 is lane 0's row; rows from rows_left on and
    // columns from cols_left on are skipped.
    template <class Output>
    KITTENS_DEVICE static void store(const Output& output, int first, shared_byte* lds, T* out,
                                     int64_t row_stride, int rows_left, int cols_left) {
        using Shape = typename Output::shape;
        const int lane = recompute_lane_id();
        __builtin_assume(lane >= 0 && lane < wave_lanes);
        const Coordinate own = row_layout(Shape::value(), lane, 0);
#pragma unroll
        for (int j = 0; j < columns / Shape::cols; ++j)
            Stager::template write<Shape>(lds, own, 0, j * Shape::cols,
                                          output.tiles[0][first / Shape::cols + j],
                                          [](auto run) { return __builtin_convertvector(run, vec<T, 4>); });
        compiler_fence();
        const int row = lane / Stager::vectors_per_row, byte = lane % Stager::vectors_per_row * b128_bytes;
        const bool inside = byte / static_cast<int>(sizeof(T)) < cols_left;
        T* to = out + row * row_stride + byte / static_cast<int>(sizeof(T));
#pragma unroll
        for (int pass = 0; pass < rows; pass += Stager::rows_per_pass) {
            const b128 values = Stager::read(lds, row, pass, byte);
            if (inside && pass + row < rows_left) *reinterpret_cast<b128*>(to) = values;
            to += Stager::rows_per_pass * row_stride;
        }
        compiler_fence();
    }
};

}  // namespace hipkittens::attention
