// tiles/convert.h: conversions of arithmetic results to the operand types of matrix instructions.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"
#include "unroll.h"

namespace kittens {

// Rounds to nearest, ties to even. gfx942 rounds to bf16 with integer arithmetic, where the compiler's own conversion also
// tests every number for NaN, which is half of the work. Adding the rounding term keeps a NaN a NaN unless its low half is
// nearly all ones; arithmetic produces no such NaN, nor does widening a bf16.
template <class T, int count>
KITTENS_DEVICE vec<T, count> narrowed(vec<float, count> values) {
    if constexpr (same_type<T, bf16> && !target.converts_to_bf16) {
        static_assert(count % 2 == 0, "two share a register");
        vec<uint32_t, count / 2> pairs;
#pragma unroll
        for (int i = 0; i < count / 2; ++i) {
            uint32_t rounded[2];
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const float value = values[2 * i + side];
                const uint32_t bits = __builtin_bit_cast(uint32_t, value);
                rounded[side] = bits + (bits >> 16 & 1) + 0x7fff;
            }
            pairs[i] = permute_bytes(rounded[1], rounded[0], 0x07060302);
        }
        return __builtin_bit_cast(vec<T, count>, pairs);
    } else {
        return __builtin_convertvector(values, vec<T, count>);
    }
}

// Four e4m3fn as e4m3fnuz of half their values. The bits are the same except that -0 becomes 0 and each NaN becomes fnuz's only one.
KITTENS_DEVICE uint32_t fnuz_of_e4m3fn(uint32_t codes) {
    constexpr uint32_t magnitudes = 0x7f7f7f7f, signs = 0x80808080;
    const uint32_t magnitude = codes & magnitudes, not_zero = magnitude + magnitudes,
                   nan = (magnitude + 0x01010101) & signs, magnitude_of_nan = nan - (nan >> 7);
    return (codes & (not_zero | magnitudes) & ~magnitude_of_nan) | nan;
}
// The inverse: e4m3fn of twice the value.
KITTENS_DEVICE uint32_t e4m3fn_of_fnuz(uint32_t codes) {
    constexpr uint32_t magnitudes = 0x7f7f7f7f, signs = 0x80808080;
    const uint32_t nan = codes & ~((codes & magnitudes) + magnitudes) & signs;
    return codes - (nan >> 7);
}
// e4m3fn values, on any target, times a scale, rounded once to T; their NaNs become NaN.
template <class T, int count>
KITTENS_DEVICE vec<T, count> scaled_e4m3fn(vec<fp8_e4m3, count> codes, float scale) {
    static_assert(count % 4 == 0, "four share a register");
    const auto words = __builtin_bit_cast(vec<uint32_t, count / 4>, codes);
    const float factor = target.ocp_float8 ? scale : 2 * scale;
    vec<float, count> values;
#pragma unroll
    for (int i = 0; i < count / 4; ++i) {
        const uint32_t word = target.ocp_float8 ? words[i] : fnuz_of_e4m3fn(words[i]);
        const vec<float, 2> lower = unpack_fp8<false>(word) * factor, upper = unpack_fp8<true>(word) * factor;
        values[4 * i] = lower[0], values[4 * i + 1] = lower[1];
        values[4 * i + 2] = upper[0], values[4 * i + 3] = upper[1];
    }
    return narrowed<T>(values);
}

// Widens an e8m0: 2^(byte - 127), and NaN for 255.
KITTENS_DEVICE float e8m0_in_float(uint32_t byte) {
    const uint32_t bits = byte == 0 ? 0x00400000 : byte == 255 ? 0x7fc00000 : byte << 23;
    return __builtin_bit_cast(float, bits);
}

// Converts 32 e2m1 times 2^(byte - 127) to bf16, exact where bf16 can represent the result; NaN for 255.
template <class Pair>
KITTENS_DEVICE vec<bf16, 32> fp4_in_bf16(vec<Pair, 16> codes, uint32_t byte) {
    const auto words = __builtin_bit_cast(vec<uint32_t, 4>, codes);
    vec<uint32_t, 16> pairs;
    if constexpr (target.scaled_conversions) {
        // The instruction uses only the exponent field of the scale.
        const float scale = __builtin_bit_cast(float, byte << 23);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            for_each_index<4>([&](auto n) KITTENS_INLINE {
                pairs[w * 4 + n.value] = unpack_fp4<n.value>(words[w], scale);
            });
        }
    } else {
        // Lookup tables: the high and the low bytes of the eight magnitudes times the factor, selected by each code.
        const float scale = e8m0_in_float(byte);
        const auto pair = [&](float even, float odd) KITTENS_INLINE {
            return permute_bytes(__builtin_bit_cast(uint32_t, odd* scale),
                                 __builtin_bit_cast(uint32_t, even* scale), 0x07060302);
        };
        const uint32_t small[2] = {pair(0, 0.5f), pair(1, 1.5f)}, large[2] = {pair(2, 3), pair(4, 6)};
        constexpr uint32_t low_bytes = 0x06040200, high_bytes = 0x07050301;
        const uint32_t small_low = permute_bytes(small[1], small[0], low_bytes),
                       small_high = permute_bytes(small[1], small[0], high_bytes),
                       large_low = permute_bytes(large[1], large[0], low_bytes),
                       large_high = permute_bytes(large[1], large[0], high_bytes);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const uint32_t even = words[w] << 4, odd = words[w];  // each code in the upper half of its byte
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t four = permute_bytes(odd, even, half ? 0x07030602 : 0x05010400),
                               magnitude = four >> 4 & 0x07070707,
                               low = permute_bytes(large_low, small_low, magnitude),
                               high = (permute_bytes(large_high, small_high, magnitude) & 0x7f7f7f7f) |
                                      (four & 0x80808080);
                pairs[w * 4 + half * 2] = permute_bytes(high, low, 0x05010400);
                pairs[w * 4 + half * 2 + 1] = permute_bytes(high, low, 0x07030602);
            }
        }
    }
    return __builtin_bit_cast(vec<bf16, 32>, pairs);
}

}  // namespace kittens
