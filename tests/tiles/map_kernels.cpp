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
    exp2(y, x), out.tile(y);
    map(y, [](float x) { return x < 0 ? -x : 2 * x; }, x), out.tile(y);
    zero(y), out.tile(y);
    neg_infty(y), out.tile(y);
}

template <class Tile>
KITTENS_DEVICE void binary_maps(const Arguments& arguments) {
    using T = typename Tile::element;
    Results<T> out{static_cast<T*>(arguments.out)};
    Tile x, y, z;
    col_vec<Tile> rows, other_rows;
    row_vec<Tile> cols, other_cols;
    take(x, arguments.a);
    take(y, arguments.b);
    take_vector(rows, arguments.c);
    take_vector(cols, static_cast<const T*>(arguments.c) + rows.count * rows.per_lane * 64);
    const float scalar = arguments.scalar;
#define ALL_FORMS(name)                  \
    name(z, x, y), out.tile(z);          \
    name(z, x, scalar), out.tile(z);     \
    name##_row(z, x, rows), out.tile(z); \
    name##_col(z, x, cols), out.tile(z);
    ALL_FORMS(add)
    ALL_FORMS(sub)
    ALL_FORMS(mul)
    ALL_FORMS(div)
    map(z, [](float x, float y, float z) { return __builtin_fmaf(x, y, z); }, x, y, x), out.tile(z);
    copy(other_rows, rows), sub(other_rows, other_rows, scalar), add(other_rows, other_rows, rows);
    add_row(z, x, other_rows), out.tile(z);
    copy(other_cols, cols), exp2(other_cols, other_cols), add(other_cols, other_cols, cols);
    mul_col(z, x, other_cols), out.tile(z);
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
    BOTH_WAYS(max)
}

template <class Tile>
KITTENS_DEVICE void masks(const Arguments& arguments) {
    using T = typename Tile::element;
    Results<T> out{static_cast<T*>(arguments.out)};
    const int number = arguments.number;
    Tile x, y;
    take(x, arguments.a);
    right_fill(y, x, number, arguments.scalar), out.tile(y);
    fill_where(y, x, arguments.scalar, [=](int row, int col) { return row + 2 * col < number; }), out.tile(y);
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
