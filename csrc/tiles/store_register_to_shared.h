// tiles/store_register_to_shared.h: a wave writes a register tile into a shared tile.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"
#include "register_tile.h"
#include "shared_tile.h"

namespace kittens {

// (row, col) as in load. Runs go out whole where they lie along the rows of the tile, element by element
// where they go down.
template <class T, int R, int C, class Layout, class Shape, class Tile>
KITTENS_DEVICE void store(Tile destination, const rt<T, R, C, Layout, Shape>& source, int row, int col) {
    using Register = rt<T, R, C, Layout, Shape>;
    static_assert(same_type<T, typename Tile::element>, "a store does not convert");
    constexpr int width = !Layout::is_row                        ? 1
                          : Shape::run * sizeof(T) <= b128_bytes ? Shape::run
                                                                 : b128_bytes / sizeof(T);
    static_assert(width * sizeof(T) <= slot_bytes(Tile::access), "a run stays inside a swizzled slot");
    const Coordinate own = Layout::at(Shape::value(), lane_id(), 0);
#pragma unroll
    for (int i = 0; i < Register::height; ++i)
#pragma unroll
        for (int j = 0; j < Register::width; ++j)
#pragma unroll
            for (int e = 0; e < Register::per_lane; e += width) {
                const Coordinate step = Layout::at(Shape::value(), 0, e);
                vec<T, width> run;
#pragma unroll
                for (int n = 0; n < width; ++n) run[n] = source.tiles[i][j][e + n];
                lds_write(run, destination.data + Tile::offset(row + own.row + i * Shape::rows + step.row,
                                                               col + own.col + j * Shape::cols + step.col));
            }
}

}  // namespace kittens
