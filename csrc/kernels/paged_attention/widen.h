// kernels/paged_attention/widen.h: converts elements of a cache to operands of 16-bit matrix instructions.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"

namespace hipkittens::paged_attention {

using namespace kittens;

// Two floats that T can represent, in one register: the upper halves are bf16's bits.
template <class T>
KITTENS_DEVICE uint32_t pair_of(float first, float second) {
    if constexpr (same_type<T, bf16>)
        return permute_bytes(__builtin_bit_cast(uint32_t, second), __builtin_bit_cast(uint32_t, first),
                             0x07060302);
    else
        return pack_f16_toward_zero(first, second);
}

// Exact: bf16 and f16 represent every e4m3 number and every 8-bit integer.
template <class T, class Cached, int count>
KITTENS_DEVICE vec<T, count> widened(vec<Cached, count> values) {
    if constexpr (same_type<T, Cached>) {
        return values;
    } else {
        static_assert((same_type<Cached, fp8_e4m3> || same_type<Cached, int8>) && count % 4 == 0);
        const auto words = __builtin_bit_cast(vec<uint32_t, count / 4>, values);
        vec<uint32_t, count / 2> pairs;
#pragma unroll
        for (int i = 0; i < count / 4; ++i) {
            vec<float, 2> lower, upper;
            if constexpr (same_type<Cached, int8>) {
                lower = {static_cast<float>(values[4 * i]), static_cast<float>(values[4 * i + 1])};
                upper = {static_cast<float>(values[4 * i + 2]), static_cast<float>(values[4 * i + 3])};
            } else {
                lower = unpack_fp8<false>(words[i]), upper = unpack_fp8<true>(words[i]);
            }
            pairs[2 * i] = pair_of<T>(lower[0], lower[1]);
            pairs[2 * i + 1] = pair_of<T>(upper[0], upper[1]);
        }
        return __builtin_bit_cast(vec<T, count>, pairs);
    }
}

}  // namespace hipkittens::paged_attention
