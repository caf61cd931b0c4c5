// tiles/reduce.h: sums, products and extremes over the rows and columns of register tiles, and over vectors.
// SPDX-License-Identifier: MIT
#pragma once
#include "elementwise.h"

namespace kittens {

// All lanes of a group receive the same bits: every level combines two halves, and the operations commute.
// Over lanes l, l + Stride, l + 2 Stride, ... (Stride 16 or 32).
template <class Operation, int Stride, class T>
KITTENS_DEVICE T reduce_across_groups(T value) {
    static_assert(Stride == 16 || Stride == 32, "groups of 16 or 32 lanes");
    if constexpr (Stride == 16) value = Operation::apply(value, exchange_16(value));
    return Operation::apply(value, exchange_32(value));
}
// Over the Width lanes of a group (16 or 32).
template <class Operation, int Width, class T>
KITTENS_DEVICE T reduce_inside_group(T value) {
    static_assert(Width == 16 || Width == 32, "groups of 16 or 32 lanes");
    value = Operation::apply(value, rotate_in_16<8>(value));
    value = Operation::apply(value, rotate_in_16<4>(value));
    value = Operation::apply(value, rotate_in_16<2>(value));
    value = Operation::apply(value, rotate_in_16<1>(value));
    if constexpr (Width == 32) value = Operation::apply(value, exchange_16(value));
    return value;
}

// Partial results stay in f32; one rounding at the end. by_row: one result per row, else one per column.
template <class Operation, bool by_row, bool accumulate, class Vector, class Tile>
KITTENS_DEVICE void reduce_tile(Vector& destination, const Tile& source, const Vector& before) {
    using T = typename Vector::element;
    using operation::wide;
    constexpr bool across_lanes_of_run = by_row == Tile::layout::is_row;  // results lie across lanes
    using Shape = row_layout_shape<Tile>;
    static_assert(Vector::length == (by_row ? Tile::rows : Tile::cols), "one result per row (column)");
    constexpr int kept = by_row ? Tile::height : Tile::width, reduced = by_row ? Tile::width : Tile::height;
    auto at = [&](int k, int r, int e) {
        return wide(by_row ? source.tiles[k % Tile::height][r % Tile::width][e]
                           : source.tiles[r % Tile::height][k % Tile::width][e]);
    };
#pragma unroll
    for (int k = 0; k < kept; ++k) {
        if constexpr (across_lanes_of_run) {
            static_assert(Vector::is_ortho, "results of this layout lie across lanes");
            float value = at(k, 0, 0);
#pragma unroll
            for (int r = 0; r < reduced; ++r)
#pragma unroll
                for (int e = r == 0 ? 1 : 0; e < Tile::per_lane; ++e)
                    value = Operation::apply(value, at(k, r, e));
            value = reduce_across_groups<Operation, Shape::rows>(value);
            if constexpr (accumulate) value = Operation::apply(value, wide(before.tiles[k][0]));
            destination.tiles[k][0] = static_cast<T>(value);
        } else {
            static_assert(Vector::is_align, "results of this layout lie along runs");
#pragma unroll
            for (int e = 0; e < Tile::per_lane; ++e) {
                float value = at(k, 0, e);
#pragma unroll
                for (int r = 1; r < reduced; ++r) value = Operation::apply(value, at(k, r, e));
                value = reduce_inside_group<Operation, Shape::rows>(value);
                if constexpr (accumulate) value = Operation::apply(value, wide(before.tiles[k][e]));
                destination.tiles[k][e] = static_cast<T>(value);
            }
        }
    }
}

// row_sum(values, tile): values[r] = sum of row r; row_sum(values, tile, before) adds before[r].
#define KITTENS_REDUCTION(name, function)                                                           \
    template <class Vector, class Tile>                                                             \
    KITTENS_DEVICE void row_##name(Vector& destination, const Tile& source) {                       \
        reduce_tile<operation::function, true, false>(destination, source, destination);            \
    }                                                                                               \
    template <class Vector, class Tile>                                                             \
    KITTENS_DEVICE void row_##name(Vector& destination, const Tile& source, const Vector& before) { \
        reduce_tile<operation::function, true, true>(destination, source, before);                  \
    }                                                                                               \
    template <class Vector, class Tile>                                                             \
    KITTENS_DEVICE void col_##name(Vector& destination, const Tile& source) {                       \
        reduce_tile<operation::function, false, false>(destination, source, destination);           \
    }                                                                                               \
    template <class Vector, class Tile>                                                             \
    KITTENS_DEVICE void col_##name(Vector& destination, const Tile& source, const Vector& before) { \
        reduce_tile<operation::function, false, true>(destination, source, before);                 \
    }
KITTENS_REDUCTION(sum, sum)
KITTENS_REDUCTION(prod, product)
KITTENS_REDUCTION(max, maximum)
KITTENS_REDUCTION(min, minimum)
#undef KITTENS_REDUCTION

// Over a whole vector, in every lane. The end of a naive vector must be filled with the operation's neutral
// value.
template <class Operation, class Vector>
KITTENS_DEVICE float reduce_vector(const Vector& source) {
    using operation::wide;
    float value = wide(source.tiles[0][0]);
    for_each_vector_register<Vector>([&](int i, int e) {
        if (i != 0 || e != 0) value = Operation::apply(value, wide(source.tiles[i][e]));
    });
    if constexpr (Vector::is_align) return reduce_across_groups<Operation, Vector::shape::rows>(value);
    value = reduce_inside_group<Operation, Vector::is_ortho ? Vector::shape::rows : 32>(value);
    if constexpr (!Vector::is_ortho) value = Operation::apply(value, exchange_32(value));
    return value;
}
template <class Vector>
KITTENS_DEVICE float sum(const Vector& source) {
    return reduce_vector<operation::sum>(source);
}
template <class Vector>
KITTENS_DEVICE float prod(const Vector& source) {
    return reduce_vector<operation::product>(source);
}
template <class Vector>
KITTENS_DEVICE float max(const Vector& source) {
    return reduce_vector<operation::maximum>(source);
}
template <class Vector>
KITTENS_DEVICE float min(const Vector& source) {
    return reduce_vector<operation::minimum>(source);
}

}  // namespace kittens
