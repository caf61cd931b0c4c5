// kernels/quantized_attention/code_products.h: products of int8 and of 8-bit floats by 32x32 matrix instructions.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::quantized_attention {

using namespace kittens;

// Codes travel in pairs through what moves 16-bit elements.
using code_pair = short;

// D += A B^T of 32 rows each: 16 int8 of a lane hold K = 32, in any order that both operands share.
KITTENS_DEVICE vec<int, 16> multiply_int8(vec<code_pair, 8> a, vec<code_pair, 8> b, vec<int, 16> c) {
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

// The same of 32 e4m3 of a lane: K = 64.
KITTENS_DEVICE vec<float, 16> multiply_fp8(vec<int, 8> a, vec<int, 8> b, vec<float, 16> c) {
    if constexpr (target.matrix_k_8bit == 128) {
        constexpr int format = matrix_format<fp8_e4m3>;
        return __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(a, b, c, format, format, 0, 0, 0, 0);
    } else {
        using four = vec<long, 4>;
        const four left = __builtin_bit_cast(four, a), right = __builtin_bit_cast(four, b);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            c = __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(left[i], right[i], c, 0, 0, 0);
        return c;
    }
}

}  // namespace hipkittens::quantized_attention
