// simulator/execute/matrix_dot.h: bf16 products with the host's own bf16 dot product (vdpbf16ps).
// SPDX-License-Identifier: MIT
//
// The registers already have the layout that the host instruction requires: a register of B is one pair of k for each of
// sixteen columns, a dword of A is the pair of one row, and sixteen lanes of D are sixteen columns of a row. Nothing is
// repacked.
#pragma once

#include "simulator/execute/matrix_layout.h"

#if defined(__AVX512BF16__)

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

template <class ShapeOf>
void multiply_dot(const MatrixOperands& operands) {
    constexpr int size = ShapeOf::size, pairs = ShapeOf::depth / 2, run_pairs = ShapeOf::run / 2;
    constexpr int columns = size / 16, rows = columns == 2 ? 4 : 8;
    typedef int32_t Dword __attribute__((may_alias));
    for (int block = 0; block < ShapeOf::blocks; ++block) {
        const int first_vgpr = block * size * size / 64;
        const uint8_t* const a = operands.a + (ShapeOf::blocks == 1 ? 0 : block * size * 4);
        const uint8_t* const b = operands.b + (ShapeOf::blocks == 1 ? 0 : block * size * 4);
        // All of B fits in registers together with the accumulators.
        __m512i right[pairs][columns];
#pragma GCC unroll 16
        for (int pair = 0; pair < pairs; ++pair) {
#pragma GCC unroll 2
            for (int j = 0; j < columns; ++j) {
                right[pair][j] =
                    _mm512_load_si512(b + pair % run_pairs * 256 + (pair / run_pairs * size + j * 16) * 4);
            }
        }
        for (int row = 0; row < size; row += rows) {
            __m512 sum[rows][columns];
#pragma GCC unroll 8
            for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
                for (int j = 0; j < columns; ++j) {
                    sum[i][j] = _mm512_load_ps(c_place(operands, first_vgpr + output_register<size>(row + i),
                                                       output_lane<size>(row + i, j * 16)));
                }
            }
#pragma GCC unroll 16
            for (int pair = 0; pair < pairs; ++pair) {
#pragma GCC unroll 8
                for (int i = 0; i < rows; ++i) {
                    const __m512i left = _mm512_set1_epi32(*reinterpret_cast<const Dword*>(
                        a + pair % run_pairs * 256 + (pair / run_pairs * size + row + i) * 4));
#pragma GCC unroll 2
                    for (int j = 0; j < columns; ++j) {
                        sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)left, (__m512bh)right[pair][j]);
                    }
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
                for (int j = 0; j < columns; ++j) {
                    _mm512_store_ps(d_place(operands, first_vgpr + output_register<size>(row + i),
                                            output_lane<size>(row + i, j * 16)),
                                    sum[i][j]);
                }
            }
        }
    }
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL

#endif
