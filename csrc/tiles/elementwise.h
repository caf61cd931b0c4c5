// tiles/elementwise.h: maps over register tiles and vectors, and broadcasts of a value per row or per column.
// SPDX-License-Identifier: MIT
#pragma once
#include "operations.h"
#include "register_vector.h"

namespace kittens {

// Calls step(i, j, e) for every register of a tile, with i and j the base tile and e the element in it.
template <class Tile, class Step>
KITTENS_DEVICE void for_each_register(const Step& step) {
#pragma unroll
    for (int i = 0; i < Tile::height; ++i)
#pragma unroll
        for (int j = 0; j < Tile::width; ++j)
#pragma unroll
            for (int e = 0; e < Tile::per_lane; ++e) step(i, j, e);
}
template <class Vector, class Step>
KITTENS_DEVICE void for_each_vector_register(const Step& step) {
#pragma unroll
    for (int i = 0; i < Vector::count; ++i)
#pragma unroll
        for (int e = 0; e < Vector::per_lane; ++e) step(i, e);
}

// destination = function(source) for any device function of one value.
template <class Register, class Function>
KITTENS_DEVICE void map(Register& destination, const Register& source, const Function& function) {
    if constexpr (is_register_tile<Register>)
        for_each_register<Register>(
            [&](int i, int j, int e) { destination.tiles[i][j][e] = function(source.tiles[i][j][e]); });
    else
        for_each_vector_register<Register>(
            [&](int i, int e) { destination.tiles[i][e] = function(source.tiles[i][e]); });
}
template <class Register, class Function>
KITTENS_DEVICE void map(Register& destination, const Register& left, const Register& right,
                        const Function& function) {
    if constexpr (is_register_tile<Register>)
        for_each_register<Register>([&](int i, int j, int e) {
            destination.tiles[i][j][e] = function(left.tiles[i][j][e], right.tiles[i][j][e]);
        });
    else
        for_each_vector_register<Register>(
            [&](int i, int e) { destination.tiles[i][e] = function(left.tiles[i][e], right.tiles[i][e]); });
}

// destination = function(row, col, source), for what depends on the place.
template <class Tile, class Function>
KITTENS_DEVICE void map_with_place(Tile& destination, const Tile& source, const Function& function) {
    const int lane = lane_id();
    const Coordinate first = Tile::layout::at(Tile::shape::value(), lane, 0);
    for_each_register<Tile>([&](int i, int j, int e) {
        const Coordinate from_first = Tile::layout::at(Tile::shape::value(), 0, e);
        destination.tiles[i][j][e] =
            function(i * Tile::shape::rows + from_first.row + first.row,
                     j * Tile::shape::cols + from_first.col + first.col, source.tiles[i][j][e]);
    });
}

template <class Register>
KITTENS_DEVICE void fill(Register& destination, typename Register::element value) {
    map(destination, destination, [=](typename Register::element) { return value; });
}
template <class Register>
KITTENS_DEVICE void zero(Register& destination) {
    fill(destination, typename Register::element(0));
}
template <class Register>
KITTENS_DEVICE void ones(Register& destination) {
    fill(destination, typename Register::element(1));
}
template <class Register>
KITTENS_DEVICE void pos_infty(Register& destination) {
    fill(destination, static_cast<typename Register::element>(__builtin_inff()));
}
template <class Register>
KITTENS_DEVICE void neg_infty(Register& destination) {
    fill(destination, static_cast<typename Register::element>(-__builtin_inff()));
}

#define KITTENS_UNARY(name, function)                                                    \
    template <class Register>                                                            \
    KITTENS_DEVICE void name(Register& destination, const Register& source) {            \
        map(destination, source,                                                         \
            [](typename Register::element x) { return operation::function::apply(x); }); \
    }
KITTENS_UNARY(neg, negate)
KITTENS_UNARY(abs, absolute)
KITTENS_UNARY(relu, relu)
KITTENS_UNARY(exp, exponential)
KITTENS_UNARY(exp2, exponential2)
KITTENS_UNARY(log, logarithm)
KITTENS_UNARY(log2, logarithm2)
KITTENS_UNARY(sqrt, square_root)
KITTENS_UNARY(rsqrt, reciprocal_square_root)
KITTENS_UNARY(rcp, reciprocal)
#undef KITTENS_UNARY

// name: tile with tile, vector with vector, either with a scalar. name_row: a value per row, name_col: per
// column.
#define KITTENS_BINARY(name, function)                                                               \
    template <class Register>                                                                        \
    KITTENS_DEVICE void name(Register& destination, const Register& left, const Register& right) {   \
        using T = typename Register::element;                                                        \
        map(destination, left, right, [](T x, T y) { return operation::function::apply(x, y); });    \
    }                                                                                                \
    template <class Register>                                                                        \
    KITTENS_DEVICE void name(Register& destination, const Register& left,                            \
                             typename Register::element right) {                                     \
        using T = typename Register::element;                                                        \
        map(destination, left, [=](T x) { return operation::function::apply(x, right); });           \
    }                                                                                                \
    template <class Tile, class Vector>                                                              \
    KITTENS_DEVICE void name##_row(Tile& destination, const Tile& source, const Vector& values) {    \
        for_each_register<Tile>([&](int i, int j, int e) {                                           \
            destination.tiles[i][j][e] =                                                             \
                operation::function::apply(source.tiles[i][j][e], value_of_row<Tile>(values, i, e)); \
        });                                                                                          \
    }                                                                                                \
    template <class Tile, class Vector>                                                              \
    KITTENS_DEVICE void name##_col(Tile& destination, const Tile& source, const Vector& values) {    \
        for_each_register<Tile>([&](int i, int j, int e) {                                           \
            destination.tiles[i][j][e] =                                                             \
                operation::function::apply(source.tiles[i][j][e], value_of_col<Tile>(values, j, e)); \
        });                                                                                          \
    }
KITTENS_BINARY(add, sum)
KITTENS_BINARY(sub, difference)
KITTENS_BINARY(mul, product)
KITTENS_BINARY(div, quotient)
KITTENS_BINARY(max, maximum)
KITTENS_BINARY(min, minimum)
#undef KITTENS_BINARY

// destination = a * b + c, one rounding.
template <class Register>
KITTENS_DEVICE void fma(Register& destination, const Register& a, const Register& b, const Register& c) {
    using T = typename Register::element;
    using operation::wide;
    auto apply = [](T x, T y, T z) { return static_cast<T>(__builtin_fmaf(wide(x), wide(y), wide(z))); };
    if constexpr (is_register_tile<Register>)
        for_each_register<Register>([&](int i, int j, int e) {
            destination.tiles[i][j][e] = apply(a.tiles[i][j][e], b.tiles[i][j][e], c.tiles[i][j][e]);
        });
    else
        for_each_vector_register<Register>([&](int i, int e) {
            destination.tiles[i][e] = apply(a.tiles[i][e], b.tiles[i][e], c.tiles[i][e]);
        });
}

template <class Tile, class Vector>
KITTENS_DEVICE void broadcast_row(Tile& destination, const Vector& values) {
    for_each_register<Tile>(
        [&](int i, int j, int e) { destination.tiles[i][j][e] = value_of_row<Tile>(values, i, e); });
}
template <class Tile, class Vector>
KITTENS_DEVICE void broadcast_col(Tile& destination, const Vector& values) {
    for_each_register<Tile>(
        [&](int i, int j, int e) { destination.tiles[i][j][e] = value_of_col<Tile>(values, j, e); });
}

}  // namespace kittens
