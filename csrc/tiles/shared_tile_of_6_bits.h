// tiles/shared_tile_of_6_bits.h: a tile of 6-bit values in LDS, and a wave's reads of it.
// SPDX-License-Identifier: MIT
#pragma once
#include "load_shared_to_register.h"

namespace kittens {

// A lane of the matrix instructions takes 32 values, 24 bytes, which no LDS access reads without losses. They are therefore stored in two
// parts. Of each 128 values of a row (96 bytes), the first part has 64 bytes: the first 16 bytes of each of the four groups of 32. The
// other part has 32: their last 8 bytes. In LDS a tile of the first parts is followed by a tile of the others: a lane reads 16 and 8 bytes.
//
// Memory has the same two parts: for each block of 128 columns, the 64-byte parts of all rows, followed by the 32-byte parts of
// all rows, followed by the next block of 128 columns. The loads of a tile are therefore whole lines for any row length.
struct rows_of_6_bits {
    static constexpr uint32_t wide = 64, narrow = 32, both = wide + narrow;
    uint32_t rows;   // of the matrix
    uint32_t first;  // of the tile

    KITTENS_DEVICE uint32_t operator()(Coordinate at) const {
        const uint32_t row = first + at.row, col = at.col * 4;
        if (row >= rows) return out_of_range;
        return col < wide ? row * wide + col : rows * wide + row * narrow + col - wide;
    }
};

// Rows and columns are those of the matrix, in dwords; a row has `Codes` values, whole blocks of 128. Size: a multiple of `Grain` bytes.
template <class T, int Rows, int Codes, int Grain>
struct st_6_bits {
    using element = T;
    static_assert(is_float6<T> && Codes % 128 == 0);
    static constexpr int rows = Rows, cols = stored<T>(Codes);
    static constexpr Access access = Access::rows;
    static constexpr int block = stored<T>(128), wide_cols = 16, narrow_cols = 8;  // of 128 values
    using Wide = st<uint32_t, Rows, Codes / 128 * wide_cols, Access::rows>;
    using Narrow = st<uint32_t, Rows, Codes / 128 * narrow_cols, Access::rows>;
    static constexpr int filled = Wide::bytes + Narrow::bytes, bytes = (filled + Grain - 1) / Grain * Grain;
    static constexpr bool is_padded = bytes != filled;

    shared_byte* data;

    // Padding bytes map past the last row.
    static constexpr Coordinate element_at(int byte) {
        const Coordinate wide = Wide::element_at(byte), narrow = Narrow::element_at(byte - Wide::bytes);
        const int wide_col = wide.col / wide_cols * block + wide.col % wide_cols,
                  narrow_col = narrow.col / narrow_cols * block + wide_cols + narrow.col % narrow_cols;
        const bool is_wide = byte < Wide::bytes;
        return {is_wide ? wide.row : narrow.row, is_wide ? wide_col : narrow_col};
    }
};

template <class Part, class T, int R, int C, class Shape, int Rows, int Codes, int Grain>
KITTENS_DEVICE void load_part(rt<T, R, C, row_l, Shape>& destination, st_6_bits<T, Rows, Codes, Grain> source,
                              int row, int col) {
    using Tile = st_6_bits<T, Rows, Codes, Grain>;
    using Wide = typename Tile::Wide;
    using Narrow = typename Tile::Narrow;
    static_assert(Shape::rows == 16 && Shape::cols == Tile::block, "a base tile is 128 codes of 16 rows");
    const int own = row_layout(Shape::value(), lane_id(), 0).row, group = lane_id() / 16;
    const int wide = Wide::offset(row + own, col / Tile::block * Tile::wide_cols + group * 4),
              narrow = Narrow::offset(row + own, col / Tile::block * Tile::narrow_cols + group * 2);
#pragma unroll
    for (int i = Part::first_row; i < Part::last_row; ++i)
#pragma unroll
        for (int j = Part::first_col; j < Part::last_col; ++j) {
            auto& fragment = destination.tiles[i][j];
            fragment.first = lds_read<vec<uint32_t, 4>>(
                source.data + stepped_offset<Wide>(wide, i * 16, j * Tile::wide_cols));
            fragment.last = lds_read<vec<uint32_t, 2>>(
                source.data + Wide::bytes + stepped_offset<Narrow>(narrow, i * 16, j * Tile::narrow_cols));
        }
}

}  // namespace kittens
