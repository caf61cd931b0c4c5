// tiles/load_shared_to_register.h: a wave reads a register tile from a shared tile.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"
#include "register_tile.h"
#include "shared_tile.h"

namespace kittens {

// The range of base tiles of a register tile that one call loads: for schedules that spread the reads.
template <int FirstRow, int LastRow, int FirstCol, int LastCol>
struct base_tiles {
    static constexpr int first_row = FirstRow, last_row = LastRow, first_col = FirstCol, last_col = LastCol;
};

template <class Part>
using transposed_base_tiles = base_tiles<Part::first_col, Part::last_col, Part::first_row, Part::last_row>;

// Row layout: runs of adjacent columns. (row, col) must be a multiple of the register tile's extents,
// rounded up to powers of two, so that steps inside the tile never carry into the lane's own address bits.
template <class Part, class T, int R, int C, class Shape, class Tile>
KITTENS_DEVICE void load_part(rt<T, R, C, row_l, Shape>& destination, Tile source, int row, int col) {
    using Register = rt<T, R, C, row_l, Shape>;
    static_assert(same_type<T, typename Tile::element>, "a load does not convert");
    static_assert(Tile::access == Access::linear || Tile::access == Access::rows ||
                      Tile::access == Access::rows_written_in_runs ||
                      Tile::access == Access::rows_in_runs_of_4,
                  "row-layout registers are read from tiles swizzled for rows");
    // A run may be longer than one read.
    constexpr int most = b128_bytes / sizeof(T), together = Shape::run < most ? Shape::run : most,
                  reads = Shape::run / together;
    using Run = vec<T, together>;
    constexpr int groups = Register::per_lane / Shape::run;
    const int lane = lane_id();
    const Coordinate own = row_layout(Shape::value(), lane, 0);
    const int lane_offset = Tile::offset(row + own.row, col + own.col);
#pragma unroll
    for (int i = Part::first_row; i < Part::last_row; ++i)
#pragma unroll
        for (int j = Part::first_col; j < Part::last_col; ++j)
#pragma unroll
            for (int n = 0; n < groups * reads; ++n) {
                const int group_col = j * Shape::cols + n / reads * Shape::run * (wave_lanes / Shape::rows) +
                                      n % reads * together;
                const Run run = lds_read<Run>(source.data +
                                              stepped_offset<Tile>(lane_offset, i * Shape::rows, group_col));
#pragma unroll
                for (int e = 0; e < together; ++e) destination.tiles[i][j][n * together + e] = run[e];
            }
}

// Column layout: runs of adjacent rows, so the read transposes. gfx950 transposes in the LDS read; gfx942
// gathers elements (its GEMM fills the tile transposed instead: load_global_to_shared_transposed.h).
template <class Part, class T, int R, int C, class Shape, class Tile>
KITTENS_DEVICE void load_part(rt<T, R, C, col_l, Shape>& destination, Tile source, int row, int col) {
    using Register = rt<T, R, C, col_l, Shape>;
    static_assert(same_type<T, typename Tile::element>, "a load does not convert");
    const int lane = lane_id();
    const Coordinate own = col_layout(Shape::value(), lane, 0);
    if constexpr (target.transposed_lds_read && is_16bit<T> && Shape::run % 4 == 0) {
        static_assert(Tile::access == Access::linear || Tile::access == Access::columns_16 ||
                          Tile::access == Access::columns_32,
                      "column-layout registers are read from tiles swizzled for columns");
        const int inside = lane % 16;
        const int lane_offset =
            Tile::offset(row + own.row + inside / 4, col + own.col / 16 * 16 + inside % 4 * 4);
#pragma unroll
        for (int i = Part::first_row; i < Part::last_row; ++i)
#pragma unroll
            for (int j = Part::first_col; j < Part::last_col; ++j)
#pragma unroll
                for (int e = 0; e < Register::per_lane; e += 4) {
                    const int element_row = col_layout(Shape::value(), 0, e).row;
                    const vec<T, 4> run = lds_read_transposed<T>(
                        source.data +
                        stepped_offset<Tile>(lane_offset, i * Shape::rows + element_row, j * Shape::cols));
#pragma unroll
                    for (int n = 0; n < 4; ++n) destination.tiles[i][j][e + n] = run[n];
                }
    } else {
#pragma unroll
        for (int i = Part::first_row; i < Part::last_row; ++i)
#pragma unroll
            for (int j = Part::first_col; j < Part::last_col; ++j)
#pragma unroll
                for (int e = 0; e < Register::per_lane; ++e)
                    destination.tiles[i][j][e] =
                        lds_read<T>(source.data + Tile::offset(row + own.row + i * Shape::rows +
                                                                   col_layout(Shape::value(), 0, e).row,
                                                               col + own.col + j * Shape::cols));
    }
}

template <class T, int R, int C, class Layout, class Shape, class Tile>
KITTENS_DEVICE void load(rt<T, R, C, Layout, Shape>& destination, Tile source, int row, int col) {
    using Register = rt<T, R, C, Layout, Shape>;
    load_part<base_tiles<0, Register::height, 0, Register::width>>(destination, source, row, col);
}

// Reads base tiles one at a time: the XORs for the tile's columns are computed once and kept in address registers; rows
// and whole tiles are offsets in the instruction.
template <class T, class Layout, class Shape, class Tile>
struct base_tile_reader {
    using Fragment = vec<T, Shape::rows * Shape::cols / wave_lanes>;
    static constexpr bool transposes = !Layout::is_row;
    static_assert(is_16bit<T> && Shape::run == 8 && sizeof(Fragment) == 16, "operands of 16-bit elements");
    static_assert(!transposes || target.transposed_lds_read, "only gfx950 transposes while it reads");
    static constexpr unsigned grain = Shape::cols * sizeof(T);
    static constexpr int count = Tile::row_bytes / grain;
    uint32_t addresses[count];

    KITTENS_DEVICE explicit base_tile_reader(shared_byte* lds) {
        const int lane = lane_id();
        const Coordinate own = Layout::at(Shape::value(), lane, 0);
        const int inside = lane % 16;
        const unsigned offset = transposes
                                    ? Tile::offset(own.row + inside / 4, own.col / 16 * 16 + inside % 4 * 4)
                                    : Tile::offset(own.row, own.col);
#pragma unroll
        for (int i = 0; i < count; ++i)
            addresses[i] = opaque(reinterpret_cast<uint32_t>(lds) + (offset ^ i * grain));
    }
    // Moves to another tile, `bytes` ahead (or back: modulo 2^32); the same for all lanes.
    KITTENS_DEVICE void move(uint32_t bytes) {
#pragma unroll
        for (uint32_t& address : addresses) address += bytes;
    }
    // Reads from the tile `further` bytes ahead, which must fit the offset field of the instruction.
    template <int row, int col, int further = 0>
    KITTENS_DEVICE Fragment read() const {
        constexpr unsigned flip = Tile::key(row) * slot_bytes(Tile::access) ^ col * sizeof(T);
        static_assert(flip % grain == 0 && flip / grain < count, "an address register for each XOR");
        auto* address =
            reinterpret_cast<shared_byte*>(addresses[flip / grain]) + row * Tile::row_bytes + further;
        if constexpr (transposes) {
            static_assert(Tile::key(4) == 0, "rows 4 further on have the same key");
            Fragment fragment;
            fragment.lo = lds_read_transposed<T>(address);
            fragment.hi = lds_read_transposed<T>(address + 4 * Tile::row_bytes);
            return fragment;
        } else {
            return lds_read<Fragment>(address);
        }
    }
};

}  // namespace kittens
