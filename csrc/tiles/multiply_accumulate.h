// tiles/multiply_accumulate.h: products of register tiles on the matrix cores, accumulated in f32.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"
#include "register_tile.h"

namespace kittens {

// One base tile. A column-layout accumulator is A B^T. The same instruction with its operands exchanged gives
// the transpose, which is the row-layout accumulator: a lane then owns adjacent columns of one row and stores
// them together.
template <class Layout, class Shape, class A, class B, class C>
KITTENS_DEVICE C multiply_base(A a, B b, C c) {
    static_assert(Shape::rows == Shape::cols && (Shape::rows == 16 || Shape::rows == 32),
                  "accumulators are 16x16 or 32x32");
    if constexpr (Shape::rows == 16) {
        if constexpr (sizeof(A) == 4)
            return Layout::is_row ? matrix_16x16(b[0], a[0], c) : matrix_16x16(a[0], b[0], c);
        else
            return Layout::is_row ? matrix_16x16(b, a, c) : matrix_16x16(a, b, c);
    } else {
        if constexpr (sizeof(A) == 4)
            return Layout::is_row ? matrix_32x32(b[0], a[0], c) : matrix_32x32(a[0], b[0], c);
        else
            return Layout::is_row ? matrix_32x32(b, a, c) : matrix_32x32(a, b, c);
    }
}

// One base tile with e8m0 factors: byte a_byte of a_scale and byte b_byte of b_scale (scaled_matrix_16x16).
template <class Layout, int a_byte, int b_byte, bool in_place, class A, class B>
KITTENS_DEVICE vec<float, 4> multiply_base_scaled(A a, B b, vec<float, 4> c, uint32_t a_scale,
                                                  uint32_t b_scale) {
    return Layout::is_row ? scaled_matrix_16x16<b_byte, a_byte, in_place>(b, a, c, b_scale, a_scale)
                          : scaled_matrix_16x16<a_byte, b_byte, in_place>(a, b, c, a_scale, b_scale);
}

// D = C + A' B'^T, where A' has M x K base tiles in row layout. A transposed operand is the same registers
// under a different name: K x M in column layout.
template <bool transpose_a, bool transpose_b, class D, class A, class B, class C>
KITTENS_DEVICE void multiply_accumulate(D& d, const A& a, const B& b, const C& c) {
    static_assert(same_type<D, C> && same_type<typename D::element, float>, "accumulators are f32");
    static_assert(same_type<typename A::element, typename B::element>, "both operands have one element type");
    static_assert(A::layout::is_row != transpose_a, "A is in row layout, A^T in column layout");
    static_assert(B::layout::is_row == transpose_b, "B is in column layout, B^T in row layout");
    static_assert((transpose_a ? A::cols : A::rows) == D::rows, "A has as many rows as the product");
    static_assert((transpose_b ? B::rows : B::cols) == D::cols, "B has as many columns as the product");
    static_assert((transpose_a ? A::rows : A::cols) == (transpose_b ? B::cols : B::rows), "A and B share K");
    static_assert((transpose_a ? A::shape::cols : A::shape::rows) == D::shape::rows,
                  "base tiles fit the instruction");
    static_assert(A::shape::run == B::shape::run, "both operands order K alike");
    constexpr int steps = transpose_a ? A::height : A::width;
#pragma unroll
    for (int k = 0; k < steps; ++k)
#pragma unroll
        for (int i = 0; i < D::height; ++i)
#pragma unroll
            for (int j = 0; j < D::width; ++j) {
                const auto& left =
                    transpose_a ? a.tiles[k % A::height][i % A::width] : a.tiles[i % A::height][k % A::width];
                const auto& right =
                    transpose_b ? b.tiles[j % B::height][k % B::width] : b.tiles[k % B::height][j % B::width];
                d.tiles[i][j] = multiply_base<typename D::layout, typename D::shape>(
                    left, right, k == 0 ? c.tiles[i][j] : d.tiles[i][j]);
            }
}

template <class D, class A, class B, class C>
KITTENS_DEVICE void mma_AB(D& d, const A& a, const B& b, const C& c) {
    multiply_accumulate<false, false>(d, a, b, c);
}
template <class D, class A, class B, class C>
KITTENS_DEVICE void mma_ABt(D& d, const A& a, const B& b, const C& c) {
    multiply_accumulate<false, true>(d, a, b, c);
}
template <class D, class A, class B, class C>
KITTENS_DEVICE void mma_AtB(D& d, const A& a, const B& b, const C& c) {
    multiply_accumulate<true, false>(d, a, b, c);
}
template <class D, class A, class B, class C>
KITTENS_DEVICE void mma_AtBt(D& d, const A& a, const B& b, const C& c) {
    multiply_accumulate<true, true>(d, a, b, c);
}

}  // namespace kittens
