// tiles/elementwise.h: maps over register tiles.
// SPDX-License-Identifier: MIT
#pragma once
#include "register_tile.h"

namespace kittens {

template <class T, int R, int C, class L, class S>
KITTENS_DEVICE void zero(rt<T, R, C, L, S>& tile) {
    using Tile = rt<T, R, C, L, S>;
#pragma unroll
    for (int i = 0; i < Tile::height; ++i)
#pragma unroll
        for (int j = 0; j < Tile::width; ++j) tile.tiles[i][j] = typename Tile::fragment(T(0));
}

}  // namespace kittens
