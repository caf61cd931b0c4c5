// tiles/order_key.h: maps floats to unsigned integers with the same order.
// SPDX-License-Identifier: MIT
#pragma once
#include "element.h"

namespace kittens {

// The order of torch.topk and torch.sort: every NaN is greater than infinity, all NaNs compare equal, as do both zeros. No
// number has the key 0.
KITTENS_DEVICE uint32_t order_key(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value + 0.0f);  // -0 + 0 is +0
    const uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
    return value != value ? ~0u : key;
}

// The value with that key: 0 for a zero, a NaN for a NaN.
KITTENS_DEVICE float value_of_order_key(uint32_t key) {
    const uint32_t flipped = key >> 31 ? 0x80000000u : ~0u;
    return __builtin_bit_cast(float, key ^ flipped);
}

// For elements that were widened to float: the number of low bits of a key that are determined by the other bits.
template <class T>
inline constexpr int implied_key_bits = 0;
template <>
inline constexpr int implied_key_bits<bf16> = 16;
template <>
inline constexpr int implied_key_bits<half> = 13;

}  // namespace kittens
