// tests/tiles/map_kernels.cpp: every map, reduction and mask; one kernel per type, layout and base shape.
// SPDX-License-Identifier: MIT
#include "registers.h"

using namespace kittens;

// Results one after the other: what is given n-th lies at n tiles (vectors) from the beginning.
template <class T>
struct Results {
    T* next;
    template <class Tile>
    KITTENS_DEVICE void tile(const Tile& tile) {
        give(next, tile);
        next += Tile::rows * Tile::cols;
    }
    template <class Vector>
    KITTENS_DEVICE void vector(const Vector& vector) {
        give_vector(next, vector);
        next += Vector::count * Vector::per_lane * 64;
    }
};

template <class Tile>
KITTENS_DEVICE void unary_maps(const Arguments& arguments) {
    using T = typename Tile::element;
    Results<T> out{static_cast<T*>(arguments.out)};
    Tile x, y;
    take(x, arguments.a);
    neg(y, x), out.tile(y);
    abs(y, x), out.tile(y);
    relu(y, x), out.tile(y);
    exp(y, x), out.tile(y);
    exp2(y, x), out.tile(y);
    abs(x, x);
    log(y, x), out.tile(y);
    log2(y, x), out.tile(y);
    sqrt(y, x), out.tile(y);
    rsqrt(y, x), out.tile(y);
    rcp(y, x), out.tile(y);
    zero(y), out.tile(y);
    ones(y), out.tile(y);
    pos_infty(y), out.tile(y);
    neg_infty(y), out.tile(y);
}

template <class Tile>
KITTENS_DEVICE void binary_maps(const Arguments& arguments) {
    using T = typename Tile::element;
    Results<T> out{static_cast<T*>(arguments.out)};
    Tile x, y, z;
    col_vec<Tile> rows;
    row_vec<Tile> cols;
    take(x, arguments.a);
    take(y, arguments.b);
    take_vector(rows, arguments.c);
    take_vector(cols, static_cast<const T*>(arguments.c) + rows.count * rows.per_lane * 64);
    const T scalar = static_cast<T>(arguments.scalar);
#define ALL_FORMS(name)                  \
    name(z, x, y), out.tile(z);          \
    name(z, x, scalar), out.tile(z);     \
    name##_row(z, x, rows), out.tile(z); \
    name##_col(z, x, cols), out.tile(z);
    ALL_FORMS(add)
    ALL_FORMS(sub)
    ALL_FORMS(mul)
    ALL_FORMS(div)
    ALL_FORMS(max)
    ALL_FORMS(min)
    fma(z, x, y, x), out.tile(z);
    broadcast_row(z, rows), out.tile(z);
    broadcast_col(z, cols), out.tile(z);
}

template <class Tile>
KITTENS_DEVICE void reductions(const Arguments& arguments) {
    using T = typename Tile::element;
    Results<T> out{static_cast<T*>(arguments.out)};
    Tile x;
    col_vec<Tile> rows, old_rows;
    row_vec<Tile> cols, old_cols;
    take(x, arguments.a);
    take_vector(old_rows, arguments.c);
    take_vector(old_cols, static_cast<const T*>(arguments.c) + rows.count * rows.per_lane * 64);
#define BOTH_WAYS(name)                              \
    row_##name(rows, x), out.vector(rows);           \
    row_##name(rows, x, old_rows), out.vector(rows); \
    col_##name(cols, x), out.vector(cols);           \
    col_##name(cols, x, old_cols), out.vector(cols);
    BOTH_WAYS(sum)
    BOTH_WAYS(prod)
    BOTH_WAYS(max)
    BOTH_WAYS(min)
    fill(rows, static_cast<T>(sum(old_rows))), out.vector(rows);
    fill(rows, static_cast<T>(max(old_rows))), out.vector(rows);
    fill(cols, static_cast<T>(sum(old_cols))), out.vector(cols);
    fill(cols, static_cast<T>(min(old_cols))), out.vector(cols);
    fill(cols, static_cast<T>(prod(old_cols))), out.vector(cols);
}

template <class Tile>
KITTENS_DEVICE void masks(const Arguments& arguments) {
    using T = typename Tile::element;
    Results<T> out{static_cast<T*>(arguments.out)};
    const T value = static_cast<T>(arguments.scalar);
    const int number = arguments.number;
    Tile x, y;
    take(x, arguments.a);
    tril(y, x, number, value), out.tile(y);
    triu(y, x, number, value), out.tile(y);
    make_causal(y, x, number, value), out.tile(y);
    make_causal_t(y, x, number, value), out.tile(y);
    right_fill(y, x, number, value), out.tile(y);
    left_fill(y, x, number, value), out.tile(y);
    lower_fill(y, x, number, value), out.tile(y);
    upper_fill(y, x, number, value), out.tile(y);
    map_with_place(y, x, [=](int row, int col, T) { return static_cast<T>(row * 2 - col); }), out.tile(y);
}

template <class T>
KITTENS_DEVICE void naive_vectors(const Arguments& arguments) {
    Results<T> out{static_cast<T*>(arguments.out)};
    rv<T, 192, naive_l> x, y;
    take_vector(x, arguments.a);
    mul(y, x, static_cast<T>(arguments.scalar)), out.vector(y);
    add(y, y, x), out.vector(y);
    fma(y, x, x, y), out.vector(y);
    fill(y, static_cast<T>(sum(x))), out.vector(y);
    fill(y, static_cast<T>(max(x))), out.vector(y);
}

#define ONE_TILE(T, Layout, Shape)                                                                           \
    TEST_KERNEL(unary_##T##_##Layout##_##Shape, 64) { unary_maps<rt<T, 32, 32, Layout, Shape>>(arguments); } \
    TEST_KERNEL(binary_##T##_##Layout##_##Shape, 64) {                                                       \
        binary_maps<rt<T, 32, 32, Layout, Shape>>(arguments);                                                \
    }                                                                                                        \
    TEST_KERNEL(reduce_##T##_##Layout##_##Shape, 64) {                                                       \
        reductions<rt<T, 32, 32, Layout, Shape>>(arguments);                                                 \
    }                                                                                                        \
    TEST_KERNEL(mask_##T##_##Layout##_##Shape, 64) { masks<rt<T, 32, 32, Layout, Shape>>(arguments); }
// Every layout with f32, and each type with a row and a column layout of both widths.
ONE_TILE(float, row_l, rt_16x16)
ONE_TILE(float, col_l, rt_16x16)
ONE_TILE(float, row_l, rt_32x32)
ONE_TILE(float, col_l, rt_32x32)
ONE_TILE(bf16, col_l, rt_16x16)
ONE_TILE(bf16, row_l, rt_32x32)
ONE_TILE(bf16, row_l, rt_16x32)
ONE_TILE(half, row_l, rt_16x16)
ONE_TILE(half, col_l, rt_32x32)
ONE_TILE(half, col_l, rt_32x16)
TEST_KERNEL(naive_float, 64) { naive_vectors<float>(arguments); }
TEST_KERNEL(naive_bf16, 64) { naive_vectors<bf16>(arguments); }
TEST_KERNEL(naive_half, 64) { naive_vectors<half>(arguments); }
