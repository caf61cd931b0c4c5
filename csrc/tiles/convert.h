// tiles/convert.h: results of arithmetic rounded to the operands of matrix instructions.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"

namespace kittens {

// To nearest, ties to even. gfx942 rounds to bf16 in integers, and the compiler asks besides of every number whether it is a
// NaN, which is half of the work. Adding what rounds leaves a NaN one unless its low half is nearly all ones; arithmetic makes
// none of these, nor does widening a bf16.
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

}  // namespace kittens
