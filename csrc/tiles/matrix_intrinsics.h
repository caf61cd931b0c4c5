// tiles/matrix_intrinsics.h: the matrix instructions.
// SPDX-License-Identifier: MIT
#pragma once
#include "element.h"
#include "target.h"

namespace kittens {

// Matrix.

// D += A B^T over one base tile of 16-bit elements, K = 16. Both targets have these instructions.
template <class T>
    requires is_16bit<T>
KITTENS_DEVICE vec<float, 4> matrix_16x16(vec<T, 4> a, vec<T, 4> b, vec<float, 4> c) {
    if constexpr (same_type<T, bf16>) {
        using four = vec<short, 4>;
        return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(four, a),
                                                         __builtin_bit_cast(four, b), c, 0, 0, 0);
    } else {
        return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
    }
}

// Operands of 8 elements per lane hold K = 32 (16 rows) or 16 (32 rows); gfx942's instructions take half of that, so there the product
// is two instructions.
template <class T>
KITTENS_DEVICE vec<float, 4> matrix_16x16(vec<T, 8> a, vec<T, 8> b, vec<float, 4> c) {
    if constexpr (target.matrix_k_16bit == 32) {
        if constexpr (same_type<T, bf16>)
            return __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
        else
            return __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, 0, 0, 0);
    } else {
        c = matrix_16x16<T>(vec<T, 4>(a.lo), vec<T, 4>(b.lo), c);
        return matrix_16x16<T>(vec<T, 4>(a.hi), vec<T, 4>(b.hi), c);
    }
}

// Operands with 32 consecutive elements along K per lane: four products.
template <class T>
    requires is_16bit<T>
KITTENS_DEVICE vec<float, 4> matrix_16x16(vec<T, 32> a, vec<T, 32> b, vec<float, 4> c) {
    c = matrix_16x16<T>(vec<T, 8>(a.lo.lo), vec<T, 8>(b.lo.lo), c);
    c = matrix_16x16<T>(vec<T, 8>(a.lo.hi), vec<T, 8>(b.lo.hi), c);
    c = matrix_16x16<T>(vec<T, 8>(a.hi.lo), vec<T, 8>(b.hi.lo), c);
    return matrix_16x16<T>(vec<T, 8>(a.hi.hi), vec<T, 8>(b.hi.hi), c);
}

KITTENS_DEVICE vec<float, 4> matrix_16x16x32(fp8_e4m3, fp8_e4m3, long a, long b, vec<float, 4> c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, c, 0, 0, 0);
}
KITTENS_DEVICE vec<float, 4> matrix_16x16x32(fp8_e4m3, bf8_e5m2, long a, long b, vec<float, 4> c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_fp8_bf8(a, b, c, 0, 0, 0);
}
KITTENS_DEVICE vec<float, 4> matrix_16x16x32(bf8_e5m2, fp8_e4m3, long a, long b, vec<float, 4> c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf8_fp8(a, b, c, 0, 0, 0);
}
KITTENS_DEVICE vec<float, 4> matrix_16x16x32(bf8_e5m2, bf8_e5m2, long a, long b, vec<float, 4> c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf8_bf8(a, b, c, 0, 0, 0);
}
KITTENS_DEVICE vec<int, 4> matrix_16x16x32(int8, int8, long a, long b, vec<int, 4> c) {
    return __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, c, 0, 0, 0);
}

// 16 elements of 8 bits hold K = 64: two instructions, or one where gfx950 has it.
template <class A, class B, class C>
KITTENS_DEVICE C matrix_16x16(vec<A, 16> a, vec<B, 16> b, C c) {
    if constexpr (target.matrix_k_8bit == 128 && same_type<A, int8>) {
        using four = vec<int, 4>;
        return __builtin_amdgcn_mfma_i32_16x16x64_i8(__builtin_bit_cast(four, a), __builtin_bit_cast(four, b),
                                                     c, 0, 0, 0);
    } else {
        using two = vec<long, 2>;
        const two left = __builtin_bit_cast(two, a), right = __builtin_bit_cast(two, b);
        c = matrix_16x16x32(A(), B(), left[0], right[0], c);
        return matrix_16x16x32(A(), B(), left[1], right[1], c);
    }
}

// The format field of v_mfma_f32_16x16x128_f8f6f4 (CDNA4 ISA manual, 7.2).
template <class T>
inline constexpr int matrix_format = same_type<T, fp8_e4m3>   ? 0
                                     : same_type<T, bf8_e5m2> ? 1
                                     : same_type<T, fp6_e2m3> ? 2
                                     : same_type<T, bf6_e3m2> ? 3
                                                              : 4;

template <class T, int count>
constexpr int format_of(const vec<T, count>*) {
    return matrix_format<T>;
}
template <class T>
constexpr int format_of(const codes_of_6_bits<T>*) {
    return matrix_format<T>;
}
template <class Operand>
inline constexpr int operand_format = format_of(static_cast<const Operand*>(nullptr));

// The registers of an operand: 8, 6 or 4 dwords.
template <class T, int count>
KITTENS_DEVICE auto matrix_registers(vec<T, count> values) {
    return __builtin_bit_cast(vec < int, is_float8<T> ? 8 : 4 >, values);
}
template <class T>
KITTENS_DEVICE vec<int, 6> matrix_registers(codes_of_6_bits<T> values) {
    return __builtin_shufflevector(
        __builtin_bit_cast(vec<int, 4>, values.first),
        __builtin_shufflevector(__builtin_bit_cast(vec<int, 2>, values.last),
                                __builtin_bit_cast(vec<int, 2>, values.last), 0, 1, -1, -1),
        0, 1, 2, 3, 4, 5);
}
// Padded to the width that the builtin takes.
KITTENS_DEVICE vec<int, 8> matrix_operand(vec<int, 8> all) { return all; }
KITTENS_DEVICE vec<int, 8> matrix_operand(vec<int, 6> six) {
    return __builtin_shufflevector(six, six, 0, 1, 2, 3, 4, 5, -1, -1);
}
KITTENS_DEVICE vec<int, 8> matrix_operand(vec<int, 4> four) {
    return __builtin_shufflevector(four, four, 0, 1, 2, 3, -1, -1, -1, -1);
}

// 32 elements of 8 bits hold K = 128, as two runs of 16 that are 64 apart; elements of 6 and 4 bits are consecutive along K. With
// constant zeros as scales, the builtin is the instruction without scales.
template <class A, class B>
KITTENS_DEVICE vec<float, 4> matrix_16x16x128(A a, B b, vec<float, 4> c) {
    return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(matrix_operand(matrix_registers(a)),
                                                            matrix_operand(matrix_registers(b)), c,
                                                            operand_format<A>, operand_format<B>, 0, 0, 0, 0);
}
template <class A, class B>
KITTENS_DEVICE vec<float, 4> matrix_16x16(vec<A, 32> a, vec<B, 32> b, vec<float, 4> c)
    requires is_float8<A>
{
    return matrix_16x16x128(a, b, c);
}
template <class A, class B>
KITTENS_DEVICE vec<float, 4> matrix_16x16(codes_of_6_bits<A> a, codes_of_6_bits<B> b, vec<float, 4> c) {
    return matrix_16x16x128(a, b, c);
}

// The same with e8m0 scale factors: byte a_byte of a_scale in lane 16 j + r holds the factor of the j-th 32 of K in row r of a.
// `in_place`: the accumulator stays in its registers. The builtin leaves that to the register allocator, which in a loop that fills most
// registers copies accumulators and spills. The compiler inserts no wait states for assembly (CDNA3 ISA manual 4.5), so use it only in
// loops where operands come from LDS and accumulators are read only after barriers; the simulator's synccheck finds missing wait states.
template <int a_byte, int b_byte, bool in_place, class A, class B>
KITTENS_DEVICE vec<float, 4> scaled_matrix_16x16(A a, B b, vec<float, 4> c, uint32_t a_scale,
                                                 uint32_t b_scale) {
    if constexpr (in_place) {
        // 6-bit operands may be assembled by moves right before the instruction, and a move needs two wait states.
#define KITTENS_SCALED_MATRIX                                                                                \
    "v_mfma_scale_f32_16x16x128_f8f6f4 %0, %1, %2, %0, %3, %4 op_sel:[%5,%6,0] op_sel_hi:[%7,%8,0] cbsz:%9 " \
    "blgp:%10"
#define KITTENS_OPERANDS                                                                             \
    "v"(matrix_registers(a)), "v"(matrix_registers(b)), "v"(a_scale), "v"(b_scale), "n"(a_byte & 1), \
        "n"(b_byte & 1), "n"(a_byte >> 1), "n"(b_byte >> 1), "n"(operand_format<A>), "n"(operand_format<B>)
        if constexpr (operand_format<A> == matrix_format<fp6_e2m3> ||
                      operand_format<A> == matrix_format<bf6_e3m2>)
            asm("s_nop 1\n\t" KITTENS_SCALED_MATRIX : "+v"(c) : KITTENS_OPERANDS);
        else
            asm(KITTENS_SCALED_MATRIX : "+v"(c) : KITTENS_OPERANDS);
#undef KITTENS_SCALED_MATRIX
#undef KITTENS_OPERANDS
        return c;
    } else {
        return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
            matrix_operand(matrix_registers(a)), matrix_operand(matrix_registers(b)), c, operand_format<A>,
            operand_format<B>, a_byte, a_scale, b_byte, b_scale);
    }
}

// gfx942's native step, with half the K.
template <class T>
KITTENS_DEVICE vec<float, 16> matrix_32x32(vec<T, 4> a, vec<T, 4> b, vec<float, 16> c) {
    static_assert(target.matrix_k_16bit == 16);
    if constexpr (same_type<T, bf16>) {
        using four = vec<short, 4>;
        return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(four, a),
                                                        __builtin_bit_cast(four, b), c, 0, 0, 0);
    } else {
        return __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, 0, 0, 0);
    }
}
template <class T>
KITTENS_DEVICE vec<float, 16> matrix_32x32(vec<T, 8> a, vec<T, 8> b, vec<float, 16> c) {
    if constexpr (target.matrix_k_16bit == 32) {
        if constexpr (same_type<T, bf16>)
            return __builtin_amdgcn_mfma_f32_32x32x16_bf16(a, b, c, 0, 0, 0);
        else
            return __builtin_amdgcn_mfma_f32_32x32x16_f16(a, b, c, 0, 0, 0);
    } else {
        c = matrix_32x32<T>(vec<T, 4>(a.lo), vec<T, 4>(b.lo), c);
        return matrix_32x32<T>(vec<T, 4>(a.hi), vec<T, 4>(b.hi), c);
    }
}

// 8-bit elements: 16 of int8 hold K = 32, 32 of e4m3 hold K = 64, in either order of K along a lane as long as both operands use it.
KITTENS_DEVICE vec<int, 16> matrix_32x32(vec<int8, 16> a, vec<int8, 16> b, vec<int, 16> c) {
    if constexpr (target.matrix_k_8bit == 128) {
        using four = vec<int, 4>;
        return __builtin_amdgcn_mfma_i32_32x32x32_i8(__builtin_bit_cast(four, a), __builtin_bit_cast(four, b),
                                                     c, 0, 0, 0);
    } else {
        using two = vec<long, 2>;
        const two left = __builtin_bit_cast(two, a), right = __builtin_bit_cast(two, b);
        c = __builtin_amdgcn_mfma_i32_32x32x16_i8(left[0], right[0], c, 0, 0, 0);
        return __builtin_amdgcn_mfma_i32_32x32x16_i8(left[1], right[1], c, 0, 0, 0);
    }
}
KITTENS_DEVICE vec<float, 16> matrix_32x32(vec<fp8_e4m3, 32> a, vec<fp8_e4m3, 32> b, vec<float, 16> c) {
    if constexpr (target.matrix_k_8bit == 128) {
        constexpr int format = matrix_format<fp8_e4m3>;
        return __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(matrix_registers(a), matrix_registers(b), c,
                                                               format, format, 0, 0, 0, 0);
    } else {
        using four = vec<long, 4>;
        const four left = __builtin_bit_cast(four, a), right = __builtin_bit_cast(four, b);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            c = __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(left[i], right[i], c, 0, 0, 0);
        return c;
    }
}

KITTENS_DEVICE vec<float, 4> matrix_16x16(float a, float b, vec<float, 4> c) {
    return __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0);
}
KITTENS_DEVICE vec<float, 16> matrix_32x32(float a, float b, vec<float, 16> c) {
    return __builtin_amdgcn_mfma_f32_32x32x2f32(a, b, c, 0, 0, 0);
}

}  // namespace kittens
