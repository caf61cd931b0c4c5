// simulator/execute/scalar_bits.h: the bit arithmetic used by scalar instructions.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

typedef uint32_t u32;
typedef int32_t i32;
typedef uint64_t u64;
typedef int64_t i64;

static inline __attribute__((always_inline)) u32 count_bits(u64 value) {
    return static_cast<u32>(__builtin_popcountll(value));
}

// Position of the lowest / of the highest set bit, counted from that end; -1 if there is none.
static inline __attribute__((always_inline)) i32 first_set(u64 value) {
    return value ? __builtin_ctzll(value) : -1;
}
static inline __attribute__((always_inline)) i32 leading_zeros(u64 value) {
    return value ? __builtin_clzll(value) : -1;
}

static inline __attribute__((always_inline)) u64 reverse_bits(u64 value) {
    value = (value >> 1 & 0x5555555555555555) | (value & 0x5555555555555555) << 1;
    value = (value >> 2 & 0x3333333333333333) | (value & 0x3333333333333333) << 2;
    value = (value >> 4 & 0x0f0f0f0f0f0f0f0f) | (value & 0x0f0f0f0f0f0f0f0f) << 4;
    return __builtin_bswap64(value);
}

// Bit i of the result: whether any of bits 4i..4i+3 is set (quadmask); the same for every bit of the quad
// (whole quad mode).
static inline __attribute__((always_inline)) u64 quad_any(u64 value) {
    return (value | value >> 1 | value >> 2 | value >> 3) & 0x1111111111111111;
}
static inline __attribute__((always_inline)) u64 quad_mask(u64 value) {
    value = quad_any(value);
    value = (value | value >> 3) & 0x0303030303030303;
    value = (value | value >> 6) & 0x000f000f000f000f;
    value = (value | value >> 12) & 0x000000ff000000ff;
    return (value | value >> 24) & 0xffff;
}

static inline __attribute__((always_inline)) u64 double_bits(u32 source) {
    u64 value = source;
    value = (value | value << 16) & 0x0000ffff0000ffff;
    value = (value | value << 8) & 0x00ff00ff00ff00ff;
    value = (value | value << 4) & 0x0f0f0f0f0f0f0f0f;
    value = (value | value << 2) & 0x3333333333333333;
    value = (value | value << 1) & 0x5555555555555555;
    return value | value << 1;
}

// Bit field extract: offset in bits 4:0 (5:0 for 64 bits), width in bits 22:16; a field may extend past the
// top.
template <class Value>
static inline __attribute__((always_inline)) Value bit_field(Value value, u32 control) {
    constexpr u32 bits = sizeof(Value) * 8;
    const u32 offset = control & (bits - 1), width = control >> 16 & 0x7f;
    value = value >> offset;
    if (width == 0) return 0;
    if (width >= bits) return value;
    typedef decltype(Value{} + 0u) Unsigned;
    if constexpr (static_cast<Value>(-1) < 0) {
        const u64 low = static_cast<u64>(value) << (64 - width);
        return static_cast<Value>(static_cast<i64>(low) >> (64 - width));
    } else {
        return static_cast<Value>(static_cast<Unsigned>(value) & ((Unsigned{1} << width) - 1));
    }
}

static inline __attribute__((always_inline)) u32 add_signed(u32 a, u32 b, u32& scc) {
    const u32 sum = a + b;
    scc = (~(a ^ b) & (a ^ sum)) >> 31;
    return sum;
}
static inline __attribute__((always_inline)) u32 subtract_signed(u32 a, u32 b, u32& scc) {
    const u32 difference = a - b;
    scc = ((a ^ b) & (a ^ difference)) >> 31;
    return difference;
}
static inline __attribute__((always_inline)) u32 add_wide(u64 a, u64 b, u32& scc) {
    const u64 sum = a + b;
    scc = sum > 0xffffffff;
    return static_cast<u32>(sum);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
