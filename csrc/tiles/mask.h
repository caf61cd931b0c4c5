// tiles/mask.h: replaces parts of a register tile with one value.
// SPDX-License-Identifier: MIT
#pragma once
#include "elementwise.h"

namespace kittens {

// Replaces every element for which where(row, col) is true.
template <class Tile, class Where>
KITTENS_DEVICE void fill_where(Tile& destination, const Tile& source, float value, const Where& where) {
    const Coordinate first = Tile::at(lane_id(), 0, 0, 0);
    for_each_register<Tile>([&](int i, int j, int e) {
        const Coordinate step = Tile::at(0, i, j, e);
        destination.tiles[i][j][e] = where(first.row + step.row, first.col + step.col)
                                         ? static_cast<typename Tile::element>(value)
                                         : source.tiles[i][j][e];
    });
}

// Replaces the columns from `first` on.
template <class Tile>
KITTENS_DEVICE void right_fill(Tile& destination, const Tile& source, int first, float value) {
    fill_where(destination, source, value, [=](int, int col) { return col >= first; });
}

}  // namespace kittens
