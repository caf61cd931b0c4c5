// tiles/register_vector.h: rv, one value per row or column of a register tile, distributed like the tile.
// SPDX-License-Identifier: MIT
#pragma once
#include "register_tile.h"

namespace kittens {

// How the elements of a vector are distributed if Shape describes a row-layout base tile (a column-layout tile is treated
// as the row-layout tile of its transpose).
struct align_l {
};  // along the runs: a lane holds the elements of its runs, with equal values in all lanes that hold the same run
struct ortho_l {
};  // across the lanes: one element per lane and base tile, with equal values in all lanes of one row

template <class T, int Length, class Layout, class Shape = rt_16x16>
struct rv {
    using element = T;
    using layout = Layout;
    using shape = Shape;
    static constexpr int length = Length;
    static constexpr bool is_ortho = same_type<Layout, ortho_l>;
    static constexpr int step = is_ortho ? Shape::rows : Shape::cols, count = Length / step;
    static constexpr int per_lane = is_ortho ? 1 : Shape::rows * Shape::cols / wave_lanes;
    static_assert(Length % step == 0, "a vector is a whole number of base tiles");

    using fragment = vec<T, per_lane>;
    fragment tiles[count];

    KITTENS_DEVICE fragment& base(int n) { return tiles[n]; }
    KITTENS_DEVICE const fragment& base(int n) const { return tiles[n]; }
};

template <class Tile>
using row_layout_shape =
    choose<Tile::layout::is_row, typename Tile::shape, transposed_shape<typename Tile::shape>>;

// One value per row (a column vector), and one value per column (a row vector).
template <class Tile, class T = typename Tile::element>
using col_vec = rv<T, Tile::rows, choose<Tile::layout::is_row, ortho_l, align_l>, row_layout_shape<Tile>>;
template <class Tile, class T = typename Tile::element>
using row_vec = rv<T, Tile::cols, choose<Tile::layout::is_row, align_l, ortho_l>, row_layout_shape<Tile>>;

// The value of the vector for element e of a base tile in row (column) n of base tiles.
template <bool by_row, class Tile, class Vector>
KITTENS_DEVICE auto value_of(const Vector& values, int n, int e) {
    static_assert(Vector::length == (by_row ? Tile::rows : Tile::cols), "one value per row (column)");
    static_assert(Vector::is_ortho == (by_row == Tile::layout::is_row), "col_vec (row_vec) of the tile");
    return values.tiles[n][Vector::is_ortho ? 0 : e];
}

}  // namespace kittens
