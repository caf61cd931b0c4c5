// tiles/output_stager.h: moves accumulators through LDS into whole rows, which are stored 16 bytes at a time.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"
#include "lane_layout.h"
#include "shared_tile.h"

namespace kittens {

// A wave writes the runs of four columns that its lanes hold of a row-layout accumulator and reads whole rows back,
// adjacent lanes side by side, so that stores cover whole cache lines. `Rows` defines their placement in LDS:
//   element, row_bytes   of a row
//   run_bytes            that stay contiguous: 16, or a run of four elements
//   offset(lane_row, row, lane_byte, byte)   of row lane_row + row, byte lane_byte + byte; the lane-dependent part is separate
// The LDS belongs to the wave alone, and a wave's LDS accesses execute in order. Between writing and reading, and
// before rows are overwritten, only the compiler must be kept from reordering them (compiler_fence).
template <class Rows>
struct output_stager {
    using T = typename Rows::element;
    static constexpr int size = sizeof(T), vectors_per_row = Rows::row_bytes / b128_bytes,
                         rows_per_pass = wave_lanes / vectors_per_row;
    static_assert(Rows::run_bytes == b128_bytes || 2 * Rows::run_bytes == b128_bytes);

    // Writes one base tile that starts at (row, col). convert() converts four columns to T. `in_order`: processes one
    // run at a time, where the compiler would otherwise convert all of them at once.
    template <class Shape, bool in_order = false, class Fragment, class Convert>
    KITTENS_DEVICE static void write(shared_byte* lds, Coordinate lane_at, int row, int col,
                                     const Fragment& values, const Convert& convert) {
        static_assert(Shape::run == 4, "a lane owns four neighbouring columns");
#pragma unroll
        for (int e = 0; e < Shape::rows * Shape::cols / wave_lanes; e += 4) {
            const vec<float, 4> run{values[e], values[e + 1], values[e + 2], values[e + 3]};
            const int run_col = col + row_layout(Shape::value(), 0, e).col;
            lds_write(convert(run), lds + Rows::offset(lane_at.row, row, lane_at.col * size, run_col * size));
            if constexpr (in_order) schedule_fence();
        }
    }
    // In each pass, lane l reads the 16-byte vector l % vectors_per_row of row l / vectors_per_row.
    KITTENS_DEVICE static b128 read(shared_byte* lds, int lane_row, int row, int lane_byte) {
        if constexpr (Rows::run_bytes == b128_bytes) {
            return lds_read<b128>(lds + Rows::offset(lane_row, row, lane_byte, 0));
        } else {
            using half = vec<uint32_t, 2>;
            const half low = lds_read<half>(lds + Rows::offset(lane_row, row, lane_byte, 0));
            const half high = lds_read<half>(lds + Rows::offset(lane_row, row, lane_byte, Rows::run_bytes));
            return {low[0], low[1], high[0], high[1]};
        }
    }
};

// Rows of a shared tile whose swizzle keeps 16 bytes contiguous.
template <class Tile>
struct tile_rows {
    using element = typename Tile::element;
    static constexpr int row_bytes = Tile::row_bytes, run_bytes = slot_bytes(Tile::access);
    static_assert(run_bytes == b128_bytes);
    KITTENS_DEVICE static int offset(int lane_row, int row, int lane_byte, int byte) {
        constexpr int size = sizeof(element);
        return stepped_offset<Tile>(Tile::offset(lane_row, lane_byte / size), row, byte / size);
    }
};

}  // namespace kittens
