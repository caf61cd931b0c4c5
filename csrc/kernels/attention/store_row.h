// kernels/attention/store_row.h: stores a lane's row of a tile from registers to memory.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::attention {

using namespace kittens;

// Runs of four columns, the first of which is at own_col in this lane; columns from `cols` on are skipped.
template <class Tile, class Element>
KITTENS_DEVICE void store_row(const Tile& tile, Element* row, int own_col, int cols) {
    using Shape = typename Tile::shape;
#pragma unroll
    for (int j = 0; j < Tile::width; ++j)
#pragma unroll
        for (int e = 0; e < Tile::per_lane; e += 4) {
            const auto& all = tile.tiles[0][j];
            const vec<float, 4> run = {all[e], all[e + 1], all[e + 2], all[e + 3]};
            const int col = j * Shape::cols + row_layout(Shape::value(), 0, e).col;
            if (col + own_col < cols)
                *reinterpret_cast<vec<Element, 4>*>(row + own_col + col) =
                    __builtin_convertvector(run, vec<Element, 4>);
        }
}

}  // namespace hipkittens::attention
