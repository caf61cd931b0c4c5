// tiles/mask.h: parts of a register tile replaced by one value.
// SPDX-License-Identifier: MIT
#pragma once
#include "elementwise.h"

namespace kittens {

// Replaces every element for which where(row, col) holds.
template <class Tile, class Where>
KITTENS_DEVICE void fill_where(Tile& destination, const Tile& source, typename Tile::element value,
                               const Where& where) {
    map_with_place(destination, source,
                   [&](int row, int col, typename Tile::element x) { return where(row, col) ? value : x; });
}

// Keeps col <= row + diagonal (tril), col >= row + diagonal (triu).
template <class Tile>
KITTENS_DEVICE void tril(Tile& destination, const Tile& source, int diagonal,
                         typename Tile::element value = 0) {
    fill_where(destination, source, value, [=](int row, int col) { return col > row + diagonal; });
}
template <class Tile>
KITTENS_DEVICE void triu(Tile& destination, const Tile& source, int diagonal,
                         typename Tile::element value = 0) {
    fill_where(destination, source, value, [=](int row, int col) { return col < row + diagonal; });
}
// Scores of queries down and keys across: a query sees keys up to its own place. The tile's first query
// stands `offset` places behind its first key. make_causal_t: keys down, queries across.
template <class Tile>
KITTENS_DEVICE void make_causal(Tile& destination, const Tile& source, int offset,
                                typename Tile::element value) {
    tril(destination, source, offset, value);
}
template <class Tile>
KITTENS_DEVICE void make_causal_t(Tile& destination, const Tile& source, int offset,
                                  typename Tile::element value) {
    triu(destination, source, -offset, value);
}
// Columns from / before a column, rows from / before a row.
template <class Tile>
KITTENS_DEVICE void right_fill(Tile& destination, const Tile& source, int first,
                               typename Tile::element value) {
    fill_where(destination, source, value, [=](int, int col) { return col >= first; });
}
template <class Tile>
KITTENS_DEVICE void left_fill(Tile& destination, const Tile& source, int past, typename Tile::element value) {
    fill_where(destination, source, value, [=](int, int col) { return col < past; });
}
template <class Tile>
KITTENS_DEVICE void lower_fill(Tile& destination, const Tile& source, int first,
                               typename Tile::element value) {
    fill_where(destination, source, value, [=](int row, int) { return row >= first; });
}
template <class Tile>
KITTENS_DEVICE void upper_fill(Tile& destination, const Tile& source, int past,
                               typename Tile::element value) {
    fill_where(destination, source, value, [=](int row, int) { return row < past; });
}

}  // namespace kittens
