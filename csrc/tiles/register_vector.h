// tiles/register_vector.h: rv, one value per row or column of a register tile, spread like the tile.
// SPDX-License-Identifier: MIT
#pragma once
#include "register_tile.h"

namespace kittens {

// Where the elements of a vector lie when Shape describes a row-layout base tile (a column-layout tile counts
// as the row-layout tile of its transpose).
struct align_l {};  // along the runs: a lane holds the elements of its runs, equal in the lanes of one run
struct ortho_l {};  // across the lanes: one element per lane and base tile, equal in lanes of one row
struct naive_l {};  // element i in lane i % 64

template <class T, int Length, class Layout, class Shape = rt_16x16>
struct rv {
    using element = T;
    using layout = Layout;
    using shape = Shape;
    static constexpr int length = Length;
    static constexpr bool is_align = same_type<Layout, align_l>, is_ortho = same_type<Layout, ortho_l>;
    static constexpr int step = is_align ? Shape::cols : is_ortho ? Shape::rows : wave_lanes;
    static constexpr int per_lane = is_align ? Shape::rows * Shape::cols / wave_lanes : 1;
    static constexpr int count = (Length + step - 1) / step;
    static_assert(same_type<Layout, naive_l> || Length % step == 0,
                  "a vector is a whole number of base tiles");

    using fragment = vec<T, per_lane>;
    fragment tiles[count];

    // The element of the vector that register `index` of tile `tile` holds in `lane`.
    static constexpr int at(int lane, int tile, int index) {
        return tile * step + (is_align   ? row_layout(Shape::value(), lane, index).col
                              : is_ortho ? lane % Shape::rows
                                         : lane);
    }
};

template <class T>
inline constexpr bool is_register_vector = false;
template <class T, int N, class L, class S>
inline constexpr bool is_register_vector<rv<T, N, L, S>> = true;

template <class Tile>
using row_layout_shape =
    choose<Tile::layout::is_row, typename Tile::shape, transposed_shape<typename Tile::shape>>;

// One value per row (a column of values), one value per column (a row of values).
template <class Tile, class T = typename Tile::element>
using col_vec = rv<T, Tile::rows, choose<Tile::layout::is_row, ortho_l, align_l>, row_layout_shape<Tile>>;
template <class Tile, class T = typename Tile::element>
using row_vec = rv<T, Tile::cols, choose<Tile::layout::is_row, align_l, ortho_l>, row_layout_shape<Tile>>;

// The vector's value for element e of base tile (i, j) of a tile: by row or by column.
template <class Tile, class Vector>
KITTENS_DEVICE auto value_of_row(const Vector& values, int i, int e) {
    static_assert(Vector::length == Tile::rows, "one value per row");
    if constexpr (Tile::layout::is_row) {
        static_assert(Vector::is_ortho, "rows of a row-layout tile lie across lanes");
        return values.tiles[i][0];
    } else {
        static_assert(Vector::is_align, "rows of a column-layout tile lie along runs");
        return values.tiles[i][e];
    }
}
template <class Tile, class Vector>
KITTENS_DEVICE auto value_of_col(const Vector& values, int j, int e) {
    static_assert(Vector::length == Tile::cols, "one value per column");
    if constexpr (Tile::layout::is_row) {
        static_assert(Vector::is_align, "columns of a row-layout tile lie along runs");
        return values.tiles[j][e];
    } else {
        static_assert(Vector::is_ortho, "columns of a column-layout tile lie across lanes");
        return values.tiles[j][0];
    }
}

}  // namespace kittens
