// simulator/execute/matrix_strict.h: k-sequential multiplication: fused multiply-adds in f32 and f64,
// integers.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/execute/matrix_arithmetic.h"
#include "simulator/execute/matrix_layout.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// Block `block` of an operand, unpacked, with element (k, row or column) at [k * size + row].
template <class Format, class ShapeOf, class Element>
HIPKITTENS_INLINE void unpack_block(Element* to, const uint8_t* from, int block) {
    constexpr int size = ShapeOf::size, run = ShapeOf::run;
    static_assert(size >= 16);
    constexpr int vgprs = run / Format::per_dword;
    const int first_lane = ShapeOf::blocks == 1 ? 0 : block * size, lanes = ShapeOf::blocks == 1 ? 64 : size;
#pragma GCC unroll 16
    for (int vgpr = 0; vgpr < vgprs; ++vgpr) {
#pragma GCC unroll 8
        for (int lane = 0; lane < lanes; lane += matrix_width) {
            const MatrixBits dwords = load_vector<MatrixBits>(from + vgpr * 256 + (first_lane + lane) * 4);
#pragma GCC unroll 4
            for (int e = 0; e < Format::per_dword; ++e) {
                const int k = lane / size * run + vgpr * Format::per_dword + e;
                store_vector(to + k * size + lane % size, Format::unpack(dwords, e));
            }
        }
    }
}

// Operations on accumulators; `Element` is the type a multiplicand unpacks to.
struct FloatSum {
    typedef float Element;
    typedef MatrixFloats Vector;
    template <class A>
    HIPKITTENS_INLINE Vector add(A a, Vector b, Vector sum) {
        return fused_multiply_add(a, b, sum);
    }
    HIPKITTENS_INLINE Vector finish(Vector sum) { return canonical_nan(sum); }
};
struct IntegerSum {
    typedef int32_t Element;
    typedef MatrixInts Vector;
    template <class A>
    HIPKITTENS_INLINE Vector add(A a, Vector b, Vector sum) {
        // Unsigned: the sum wraps.
        typedef uint32_t Unsigned __attribute__((vector_size(sizeof(Vector))));
        return (Vector)((Unsigned)(a * b) + (Unsigned)sum);
    }
    HIPKITTENS_INLINE Vector finish(Vector sum) { return sum; }
};

// The tile of `rows` x `columns * matrix_width` accumulators that stays in host registers.
template <int size>
struct StrictTile {
    static constexpr int columns = size == 32 || matrix_width < 16 ? 2 : 1;
    static constexpr int rows = columns == 2 ? 4 : 8;
};

// D = A * B + C of one block whose operands are unpacked.
template <int size, int depth, class Sum>
HIPKITTENS_INLINE void multiply_unpacked(const MatrixOperands& operands, int first_vgpr,
                                         const typename Sum::Element* a, const typename Sum::Element* b) {
    typedef typename Sum::Vector Vector;
    constexpr int width = matrix_width, rows = StrictTile<size>::rows, columns = StrictTile<size>::columns;
    for (int column = 0; column < size; column += columns * width) {
        for (int row = 0; row < size; row += rows) {
            Vector sum[rows][columns];
#pragma GCC unroll 8
            for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
                for (int j = 0; j < columns; ++j) {
                    sum[i][j] =
                        load_vector<Vector>(c_place(operands, first_vgpr + output_register<size>(row + i),
                                                    output_lane<size>(row + i, column + j * width)));
                }
            }
#pragma GCC unroll 4
            for (int k = 0; k < depth; ++k) {
                Vector right[columns];
#pragma GCC unroll 2
                for (int j = 0; j < columns; ++j)
                    right[j] = load_vector<Vector>(b + k * size + column + j * width);
#pragma GCC unroll 8
                for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
                    for (int j = 0; j < columns; ++j)
                        sum[i][j] = Sum::add(a[k * size + row + i], right[j], sum[i][j]);
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
                for (int j = 0; j < columns; ++j) {
                    store_vector(d_place(operands, first_vgpr + output_register<size>(row + i),
                                         output_lane<size>(row + i, column + j * width)),
                                 Sum::finish(sum[i][j]));
                }
            }
        }
    }
}

template <class Format, class ShapeOf, class Sum = FloatSum, class FormatOfB = Format>
void multiply_strict(const MatrixOperands& operands) {
    constexpr int size = ShapeOf::size, depth = ShapeOf::depth;
    alignas(64) typename Sum::Element a[depth * size], b[depth * size];
    for (int block = 0; block < ShapeOf::blocks; ++block) {
        unpack_block<Format, ShapeOf>(a, operands.a, block);
        unpack_block<FormatOfB, ShapeOf>(b, operands.b, block);
        multiply_unpacked<size, depth, Sum>(operands, block * size * size / 64, a, b);
    }
}

// Sixteen blocks of 4 x 4: lane 4 * block + column. A's rows are first spread over the lanes that use them.
template <class Format, int depth, class Sum = FloatSum>
void multiply_strict_4x4(const MatrixOperands& operands) {
    typedef typename Sum::Vector Vector;
    constexpr int vgprs = depth / Format::per_dword;
    alignas(64) typename Sum::Element a[depth * 64], b[depth * 64], spread[64];
    for (int vgpr = 0; vgpr < vgprs; ++vgpr) {
        for (int lane = 0; lane < 64; lane += matrix_width) {
            for (int e = 0; e < Format::per_dword; ++e) {
                const int at = (vgpr * Format::per_dword + e) * 64 + lane;
                store_vector(a + at,
                             Format::unpack(load_vector<MatrixBits>(operands.a + vgpr * 256 + lane * 4), e));
                store_vector(b + at,
                             Format::unpack(load_vector<MatrixBits>(operands.b + vgpr * 256 + lane * 4), e));
            }
        }
    }
    for (int row = 0; row < 4; ++row) {
        alignas(64) typename Sum::Element sum[64];
        for (int lane = 0; lane < 64; lane += matrix_width)
            store_vector(sum + lane, load_vector<MatrixInts>(c_place(operands, row, lane)));
        for (int k = 0; k < depth; ++k) {
            for (int lane = 0; lane < 64; ++lane) spread[lane] = a[k * 64 + lane / 4 * 4 + row];
            for (int lane = 0; lane < 64; lane += matrix_width) {
                store_vector(sum + lane, Sum::add(load_vector<Vector>(spread + lane),
                                                  load_vector<Vector>(b + k * 64 + lane),
                                                  load_vector<Vector>(sum + lane)));
            }
        }
        for (int lane = 0; lane < 64; lane += matrix_width) {
            store_vector(d_place(operands, row, lane), Sum::finish(load_vector<Vector>(sum + lane)));
        }
    }
}

// One f64 per lane and k; row (of A) or column (of B) lane % 16, k = lane / 16. D: registers 2i and 2i + 1
// hold rows 4i + lane / 16.
void multiply_f64_16x16x4(const MatrixOperands& operands);
// Lane = row (or column) + 4 * block + 16 * k; D: lane = column + 4 * block + 16 * row.
void multiply_f64_4x4x4(const MatrixOperands& operands);

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
