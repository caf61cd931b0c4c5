// tiles/matrix_intrinsics.h: the matrix instructions.
// SPDX-License-Identifier: MIT
#pragma once
#include "element.h"
#include "target.h"

namespace kittens {

// Matrix.

// D += A B^T over one base tile. Operands of 8 elements hold K = 32 (16 rows) or 16 (32 rows); gfx942's
// instructions take half of that, so there the product is two of them.
template <class T>
KITTENS_DEVICE vec<float, 4> matrix_16x16(vec<T, 8> a, vec<T, 8> b, vec<float, 4> c) {
    if constexpr (target.matrix_k_16bit == 32) {
        if constexpr (same_type<T, bf16>)
            return __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
        else
            return __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, 0, 0, 0);
    } else if constexpr (same_type<T, bf16>) {
        using four = vec<short, 4>;
        c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(four, vec<T, 4>(a.lo)),
                                                      __builtin_bit_cast(four, vec<T, 4>(b.lo)), c, 0, 0, 0);
        return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
            __builtin_bit_cast(four, vec<T, 4>(a.hi)), __builtin_bit_cast(four, vec<T, 4>(b.hi)), c, 0, 0, 0);
    } else {
        c = __builtin_amdgcn_mfma_f32_16x16x16f16(a.lo, b.lo, c, 0, 0, 0);
        return __builtin_amdgcn_mfma_f32_16x16x16f16(a.hi, b.hi, c, 0, 0, 0);
    }
}

// 16 elements of 8 bits hold K = 64, two instructions on both targets.
KITTENS_DEVICE vec<float, 4> matrix_16x16(vec<fp8_e4m3, 16> a, vec<fp8_e4m3, 16> b, vec<float, 4> c) {
    using two = vec<long, 2>;
    const two left = __builtin_bit_cast(two, a), right = __builtin_bit_cast(two, b);
    c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(left[0], right[0], c, 0, 0, 0);
    return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(left[1], right[1], c, 0, 0, 0);
}

// gfx942's own step, of half the K.
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

KITTENS_DEVICE vec<float, 4> matrix_16x16(float a, float b, vec<float, 4> c) {
    return __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0);
}
KITTENS_DEVICE vec<float, 16> matrix_32x32(float a, float b, vec<float, 16> c) {
    return __builtin_amdgcn_mfma_f32_32x32x2f32(a, b, c, 0, 0, 0);
}

}  // namespace kittens
