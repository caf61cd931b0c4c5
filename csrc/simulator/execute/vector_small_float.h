// simulator/execute/vector_small_float.h: floats of 8, 6 and 4 bits to and from f32, sixteen lanes at a time. gfx942 uses the
// FNUZ formats of fp8 (e4m3) and bf8 (e5m2): exponent bias one larger, no infinity, no -0, one NaN 0x80. gfx950 has the
// OCP ones, and fp6 (e2m3), bf6 (e3m2) and fp4 (e2m1).
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/execute/vector_meaning.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// Fields of a small float. `largest`: the largest finite magnitude; `overflow`: the result beyond it; FNUZ
// has no -0.
struct Fp8Fnuz {
    static constexpr int bits = 8, mantissa_bits = 3, bias = 8;
    static constexpr uint32_t largest = 0x7f, overflow = 0x80, nan = 0x80;
    static constexpr bool is_fnuz = true, has_infinity = false, has_nan = true;
};
struct Bf8Fnuz : Fp8Fnuz {
    static constexpr int mantissa_bits = 2, bias = 16;
};
struct Fp8Ocp {
    static constexpr int bits = 8, mantissa_bits = 3, bias = 7;
    static constexpr uint32_t largest = 0x7e, overflow = 0x7f, nan = 0x7f;
    static constexpr bool is_fnuz = false, has_infinity = false, has_nan = true;
};
struct Bf8Ocp : Fp8Ocp {
    static constexpr int mantissa_bits = 2, bias = 15;
    static constexpr uint32_t largest = 0x7b, overflow = 0x7c, nan = 0x7f;
    static constexpr bool has_infinity = true;
};
// In the 6- and 4-bit formats every pattern is a number: infinity and NaN become the largest number.
struct Fp6 {
    static constexpr int bits = 6, mantissa_bits = 3, bias = 1;
    static constexpr uint32_t largest = 0x1f, overflow = 0x1f, nan = 0x1f;
    static constexpr bool is_fnuz = false, has_infinity = false, has_nan = false;
};
struct Bf6 : Fp6 {
    static constexpr int mantissa_bits = 2, bias = 3;
};
struct Fp4 : Fp6 {
    static constexpr int bits = 4, mantissa_bits = 1, bias = 1;
    static constexpr uint32_t largest = 7, overflow = 7, nan = 7;
};

constexpr uint32_t power_of_two(int exponent) {
    return static_cast<uint32_t>(exponent + 127) << 23;
}  // f32 bits

// Returns the result in the low bits of each lane.
template <class Format>
HIPKITTENS_LARGE f32x16 from_small_float(u32x16 code) {
    constexpr int shift = 23 - Format::mantissa_bits;
    constexpr uint32_t sign_bit = 1u << (Format::bits - 1);
    const u32x16 magnitude = code & (sign_bit - 1), sign = (code & sign_bit) << (32 - Format::bits);
    const u32x16 normal = (magnitude << shift) + (static_cast<uint32_t>(127 - Format::bias) << 23);
    const f32x16 step = (f32x16)(u32x16{} + power_of_two(1 - Format::bias - Format::mantissa_bits));
    const f32x16 tiny = __builtin_convertvector((i32x16)magnitude, f32x16) * step;
    u32x16 bits = pick(magnitude < (1u << Format::mantissa_bits), (u32x16)tiny, normal) | sign;
    const u32x16 quiet_nan = u32x16{} + 0x7fc00000u;
    if constexpr (Format::is_fnuz) {
        bits = pick((code & 0xff) == 0x80, quiet_nan, bits);
    } else if constexpr (Format::has_nan) {
        bits = pick(magnitude > Format::largest, quiet_nan | sign, bits);
        if constexpr (Format::has_infinity)
            bits = pick(magnitude == Format::overflow, (u32x16{} + 0x7f800000u) | sign, bits);
    }
    return (f32x16)bits;
}

// Handles sign, infinity, NaN and overflow, for f32 `bits` whose magnitude rounds to `code`.
template <class Format>
HIPKITTENS_LARGE u32x16 with_specials(u32x16 bits, u32x16 code, bool saturate) {
    const u32x16 magnitude = bits & 0x7fffffff,
                 sign = (bits >> (32 - Format::bits)) & (1u << (Format::bits - 1));
    const u32x16 beyond = u32x16{} + (saturate ? Format::largest : Format::overflow);
    const auto special = magnitude >= 0x7f800000;
    code = pick(~special & (code > Format::largest), beyond, code);
    code = pick(special, u32x16{} + Format::overflow, code);
    code = pick(magnitude > 0x7f800000, u32x16{} + Format::nan, code);
    if constexpr (Format::is_fnuz) return pick((code == 0) | (code == 0x80), code, code | sign);
    return code | sign;
}

// Rounds to nearest even. Out of range: infinity or NaN, or the largest value if MODE.FP16_OVFL is set.
template <class Format>
HIPKITTENS_LARGE u32x16 to_small_float(f32x16 value, bool saturate) {
    constexpr int shift = 23 - Format::mantissa_bits;
    const u32x16 bits = (u32x16)value, magnitude = bits & 0x7fffffff;
    const u32x16 normal = (magnitude + ((1u << (shift - 1)) - 1) + ((magnitude >> shift) & 1) -
                           (static_cast<uint32_t>(127 - Format::bias) << 23)) >>
                          shift;
    // The last place of this power of two equals the format's denormal step.
    const u32x16 magic = u32x16{} + power_of_two(23 + 1 - Format::bias - Format::mantissa_bits);
    const u32x16 tiny = (u32x16)((f32x16)magnitude + (f32x16)magic) - magic;
    u32x16 code = pick(magnitude < power_of_two(1 - Format::bias), tiny, normal);
    return with_specials<Format>(bits, code, saturate);
}

// Stochastic rounding: random bits are added below the last place of the result, and the bits below it are
// then truncated (as in ROCm's software conversions; the manual's pseudocode leaves the rounding of denormal
// results open).
template <class Format>
HIPKITTENS_LARGE u32x16 to_small_float_stochastic(f32x16 value, u32x16 random, bool saturate) {
    constexpr int shift = 23 - Format::mantissa_bits;
    const u32x16 bits = (u32x16)value, magnitude = bits & 0x7fffffff;
    const u32x16 normal =
        (magnitude + (random >> (32 - shift)) - (static_cast<uint32_t>(127 - Format::bias) << 23)) >> shift;
    // In units of the format's denormal step, with 24 fraction bits.
    const u32x16 is_tiny = (u32x16)(magnitude < power_of_two(1 - Format::bias));
    const f32x16 steps = (f32x16)(magnitude & is_tiny) *
                         (f32x16)(u32x16{} + power_of_two(24 + Format::bias - 1 + Format::mantissa_bits));
    const u32x16 tiny = ((u32x16) __builtin_convertvector(steps, i32x16) + (random >> 8)) >> 24;
    return with_specials<Format>(bits, pick((i32x16)is_tiny != 0, tiny, normal), saturate);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
