// tiles/shared_tile.h: st, a matrix in LDS, swizzled for the access that reads it.
// SPDX-License-Identifier: MIT
#pragma once
#include "element.h"
#include "lane_layout.h"
#include "swizzle.h"
#include "target.h"

namespace kittens {

// A handle: the location of the tile in the workgroup's LDS. Rows are row-major, with slots permuted within each row.
template <class T, int Rows, int Cols, Access access_ = Access::linear>
struct st {
    using element = T;
    static constexpr int rows = Rows, cols = Cols;
    static constexpr Access access = access_;
    static constexpr int row_bytes = Cols * sizeof(T);
    static constexpr int bytes = Rows * row_bytes;
    static constexpr bool is_padded = false;
    static_assert(access == Access::linear || (row_bytes & (row_bytes - 1)) == 0,
                  "a swizzled tile's row is a power of two of bytes");

    shared_byte* data;

    static constexpr unsigned key(unsigned row) {
        if constexpr (has_keys_of_four_rows(access, row_bytes, target.read_b128_window_bytes))
            return key_of_four_rows(access, row);
        else
            return swizzle_key(access, row_bytes, target.read_b128_window_bytes, row);
    }
    static constexpr unsigned offset(unsigned row, unsigned col) {
        if constexpr (has_keys_of_four_rows(access, row_bytes, target.read_b128_window_bytes))
            return row * row_bytes + (col * static_cast<unsigned>(sizeof(T)) ^ key(row) * slot_bytes(access));
        else
            return swizzled_offset(access, row_bytes, target.read_b128_window_bytes, row,
                                   col * static_cast<unsigned>(sizeof(T)));
    }
    // The column of the element at this byte of this row; the slot permutation is its own inverse.
    static constexpr int col_at(unsigned row, unsigned byte) {
        return (byte ^ key(row) * slot_bytes(access)) / sizeof(T);
    }
    // The element at this byte of the tile.
    static constexpr Coordinate element_at(int byte) {
        const int row = byte / row_bytes;
        return {row, col_at(row, byte % row_bytes)};
    }
};

// A lane's offset to base tile (row, col), from its offset to base tile (0, 0). row and col share no bit with
// the lane's own row and column, so keys combine by XOR (swizzle.h).
template <class Tile>
KITTENS_DEVICE unsigned stepped_offset(unsigned lane_offset, unsigned row, unsigned col) {
    const unsigned flip = Tile::key(row) * slot_bytes(Tile::access);
    const unsigned col_bytes = col * static_cast<unsigned>(sizeof(typename Tile::element));
    if (Tile::access == Access::linear) return lane_offset + row * Tile::row_bytes + col_bytes;
    return (lane_offset ^ flip ^ col_bytes) + row * Tile::row_bytes;
}

}  // namespace kittens
