// tiles/elementwise.h: elementwise maps over register tiles and vectors, and arithmetic with one value per row or column.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"
#include "register_vector.h"

namespace kittens {

// Calls step(i, j, e) for every register of a tile; (i, j) is the base tile, e the element in it.
template <class Tile, class Step>
KITTENS_DEVICE void for_each_register(const Step& step) {
#pragma unroll
    for (int i = 0; i < Tile::height; ++i)
#pragma unroll
        for (int j = 0; j < Tile::width; ++j)
#pragma unroll
            for (int e = 0; e < Tile::per_lane; ++e) step(i, j, e);
}

// destination = function(sources...), element by element, for tiles or vectors with the same layout. 16-bit elements are
// computed in f32 and rounded once, to nearest even.
template <class To, class Function, class... From>
KITTENS_DEVICE void map(To& destination, const Function& function, const From&... sources) {
    static_assert((same_type<typename To::layout, typename From::layout> && ...) &&
                      (same_type<typename To::shape, typename From::shape> && ...) &&
                      ((To::count == From::count) && ...),
                  "one size and one layout");
#pragma unroll
    for (int n = 0; n < To::count; ++n)
#pragma unroll
        for (int e = 0; e < To::per_lane; ++e)
            destination.base(n)[e] =
                static_cast<typename To::element>(function(static_cast<float>(sources.base(n)[e])...));
}

// Converts to another element type: to nearest, ties to even.
template <class To, class From>
KITTENS_DEVICE void copy(To& destination, const From& source) {
    map(destination, [](float x) { return x; }, source);
}

template <class Register>
KITTENS_DEVICE void fill(Register& destination, float value) {
    map(destination, [=] { return value; });
}
template <class Register>
KITTENS_DEVICE void zero(Register& destination) {
    fill(destination, 0.0f);
}
template <class Register>
KITTENS_DEVICE void neg_infty(Register& destination) {
    fill(destination, -__builtin_inff());
}
template <class Register>
KITTENS_DEVICE void exp2(Register& destination, const Register& source) {
    map(destination, [](float x) { return exponential_base_2(x); }, source);
}

template <bool by_row, class Tile, class Vector, class Function>
KITTENS_DEVICE void map_with_vector(Tile& destination, const Tile& source, const Vector& values,
                                    const Function& function) {
    for_each_register<Tile>([&](int i, int j, int e) {
        destination.tiles[i][j][e] = static_cast<typename Tile::element>(
            function(static_cast<float>(source.tiles[i][j][e]),
                     static_cast<float>(value_of<by_row, Tile>(values, by_row ? i : j, e))));
    });
}

// name: with an operand of the same kind, or with a scalar. name_row: with one value per row. name_col: with one value per column.
#define KITTENS_BINARY(name, expression)                                                                  \
    template <class Register>                                                                             \
    KITTENS_DEVICE void name(Register& destination, const Register& left, const Register& right) {        \
        map(destination, [](float x, float y) { return expression; }, left, right);                       \
    }                                                                                                     \
    template <class Register>                                                                             \
    KITTENS_DEVICE void name(Register& destination, const Register& left, float y) {                      \
        map(destination, [=](float x) { return expression; }, left);                                      \
    }                                                                                                     \
    template <class Tile, class Vector>                                                                   \
    KITTENS_DEVICE void name##_row(Tile& destination, const Tile& source, const Vector& values) {         \
        map_with_vector<true>(destination, source, values, [](float x, float y) { return expression; });  \
    }                                                                                                     \
    template <class Tile, class Vector>                                                                   \
    KITTENS_DEVICE void name##_col(Tile& destination, const Tile& source, const Vector& values) {         \
        map_with_vector<false>(destination, source, values, [](float x, float y) { return expression; }); \
    }
KITTENS_BINARY(add, x + y)
KITTENS_BINARY(sub, x - y)
KITTENS_BINARY(mul, (x * y))
KITTENS_BINARY(div, x / y)
#undef KITTENS_BINARY

}  // namespace kittens
