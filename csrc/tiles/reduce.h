// tiles/reduce.h: sums and maxima over the rows and columns of register tiles.
// SPDX-License-Identifier: MIT
#pragma once
#include "elementwise.h"

namespace kittens {

namespace operation {
struct sum {
    KITTENS_DEVICE static float apply(float x, float y) { return x + y; }
};
struct maximum {
    KITTENS_DEVICE static float apply(float x, float y) { return larger(x, y); }
};
}  // namespace operation

// All lanes of a group get the same bits: every level combines two halves, and the operations commute.
// Reduces over lanes l, l + Stride, l + 2 Stride, ... (Stride 16 or 32).
template <class Operation, int Stride>
KITTENS_DEVICE float reduce_across_groups(float value) {
    static_assert(Stride == 16 || Stride == 32, "groups of 16 or 32 lanes");
    if constexpr (Stride == 16) value = Operation::apply(value, exchange_16(value));
    return Operation::apply(value, exchange_32(value));
}
// Reduces over the Width lanes of a group (16 or 32).
template <class Operation, int Width>
KITTENS_DEVICE float reduce_inside_group(float value) {
    static_assert(Width == 16 || Width == 32, "groups of 16 or 32 lanes");
    value = Operation::apply(value, rotate_in_16<8>(value));
    value = Operation::apply(value, rotate_in_16<4>(value));
    value = Operation::apply(value, rotate_in_16<2>(value));
    value = Operation::apply(value, rotate_in_16<1>(value));
    if constexpr (Width == 32) value = Operation::apply(value, exchange_16(value));
    return value;
}

// Partial results stay in f32 and are rounded once at the end. by_row: one result per row, else one per column. If `before`
// is passed, it is combined with the results.
template <class Operation, bool by_row, class Vector, class Tile, class... Before>
KITTENS_DEVICE void reduce_tile(Vector& destination, const Tile& source, const Before&... before) {
    constexpr bool across_lanes = by_row == Tile::layout::is_row;  // one result per lane and base tile
    static_assert(Vector::length == (by_row ? Tile::rows : Tile::cols), "one result per row (column)");
    static_assert(Vector::is_ortho == across_lanes, "col_vec (row_vec) of the tile");
    constexpr int kept = by_row ? Tile::height : Tile::width, reduced = by_row ? Tile::width : Tile::height;
    constexpr int width = row_layout_shape<Tile>::rows, summed = across_lanes ? Tile::per_lane : 1;
#pragma unroll
    for (int k = 0; k < kept; ++k)
#pragma unroll
        for (int result = 0; result < Vector::per_lane; ++result) {
            const auto at = [&](int n) {
                const int r = n / summed, e = across_lanes ? n % summed : result;
                return static_cast<float>(by_row ? source.tiles[k % Tile::height][r % Tile::width][e]
                                                 : source.tiles[r % Tile::height][k % Tile::width][e]);
            };
            float value = at(0);
#pragma unroll
            for (int n = 1; n < reduced * summed; ++n) value = Operation::apply(value, at(n));
            if constexpr (across_lanes)
                value = reduce_across_groups<Operation, width>(value);
            else
                value = reduce_inside_group<Operation, width>(value);
            ((value = Operation::apply(value, static_cast<float>(before.tiles[k][result]))), ...);
            destination.tiles[k][result] = static_cast<typename Vector::element>(value);
        }
}

// row_sum(values, tile): values[r] = sum of row r; row_sum(values, tile, before) adds before[r].
#define KITTENS_REDUCTION(name, function)                                                              \
    template <class Vector, class Tile, class... Before>                                               \
    KITTENS_DEVICE void row_##name(Vector& destination, const Tile& source, const Before&... before) { \
        reduce_tile<operation::function, true>(destination, source, before...);                        \
    }                                                                                                  \
    template <class Vector, class Tile, class... Before>                                               \
    KITTENS_DEVICE void col_##name(Vector& destination, const Tile& source, const Before&... before) { \
        reduce_tile<operation::function, false>(destination, source, before...);                       \
    }
KITTENS_REDUCTION(sum, sum)
KITTENS_REDUCTION(max, maximum)
#undef KITTENS_REDUCTION

}  // namespace kittens
