// simulator/execute/transcendental.h: exp2, log2, reciprocal square root, sine and cosine of sixteen lanes.
// SPDX-License-Identifier: MIT
//
// The hardware specifies about 1 ulp (ISA manual, "V_EXP_F32" and following); these functions stay below that over the full
// range, including denormals, zeros, infinities and NaNs. Only +, *, /, fma and square root are used, so that every host level
// gives the same bits. Coefficients: least squares at Chebyshev nodes.
#pragma once

#include "simulator/execute/lanes.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

HIPKITTENS_LARGE f32x16 exponential2(f32x16 x) {
    const f32x16 whole = round_to_integral<Rounding::nearest_even>(x), rest = x - whole;
    const f32x16 f = pick(is_nan(rest), f32x16{}, rest);  // infinity - infinity
    f32x16 p = f32x16{} + 0x1.444004p-13f;
    p = fma(p, f, f32x16{} + 0x1.5f0896p-10f);
    p = fma(p, f, f32x16{} + 0x1.3b2a1cp-7f);
    p = fma(p, f, f32x16{} + 0x1.c6af6cp-5f);
    p = fma(p, f, f32x16{} + 0x1.ebfbe0p-3f);
    p = fma(p, f, f32x16{} + 0x1.62e430p-1f);
    p = fma(p, f, f32x16{} + 1.0f);
    return scale_by_power(p, whole);
}

HIPKITTENS_LARGE f64x8 logarithm2(f64x8 x) {
    // x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log2(m) is odd in s = (m - 1) / (m + 1). f32 denormals are
    // normal here. Unsigned: inputs that are not normal numbers give arbitrary results, but no overflow.
    const u64x8 bits = (u64x8)x;
    const i64x8 exponent = (i64x8)(bits - 0x3fe6a09e667f3bcd) >> 52;
    const f64x8 m = (f64x8)(bits - ((u64x8)exponent << 52));
    const f64x8 e = (f64x8)(exponent + 0x4338000000000000) - 6755399441055744.0;
    const f64x8 s = (m - 1.0) / (m + 1.0), z = s * s;
    f64x8 p = f64x8{} + 0x1.f19c36cc9d4bfp-3;
    p = p * z + 0x1.0bb6cc05a319fp-2;
    p = p * z + 0x1.484fb35e91389p-2;
    p = p * z + 0x1.a617565dd369ap-2;
    p = p * z + 0x1.2776c516bcf42p-1;
    p = p * z + 0x1.ec709dc39c936p-1;
    p = p * z + 0x1.71547652b82ffp+1;
    return e + s * p;
}

HIPKITTENS_LARGE f32x16 logarithm2(f32x16 x) {
    const Wide<f64x8> wide = widen(x);
    const f32x16 finite = narrow(Wide<f64x8>{logarithm2(wide.first), logarithm2(wide.second)});
    const f32x16 infinity = (f32x16)(u32x16{} + 0x7f800000u), invalid = (f32x16)(u32x16{} + 0xffc00000u);
    f32x16 result = pick(x == infinity, x, finite);
    result = pick(x < 0.0f, invalid, result);
    result = pick(x == 0.0f, -infinity, result);
    return pick(is_nan(x), (f32x16)((u32x16)x | 0x400000), result);
}

// 1 / sqrt(x): the quotient of two rounded steps, then one Newton step with the residual in two pieces.
HIPKITTENS_LARGE f32x16 reciprocal_square_root(f32x16 x) {
    const f32x16 y = 1.0f / square_root(x);
    const f32x16 product = x * y, rest = fma(x, y, -product);
    const f32x16 residual = fma(-product, y, f32x16{} + 1.0f) - rest * y;
    const f32x16 refined = fma(y * 0.5f, residual, y);
    const auto usual = (x > 0.0f) & (y > 0.0f);
    return pick(usual, refined, y);
}

// Sine of x turns (cosine: a quarter turn later). The fraction of x is exact, so the result is accurate up to
// f32 rounding.
template <bool cosine>
HIPKITTENS_LARGE f64x8 sine_of_turns(f64x8 x) {
    const f64x8 fraction = x - round_to_integral<Rounding::nearest_even>(x);
    const f64x8 quarter = round_to_integral<Rounding::nearest_even>(fraction * 4.0);
    const f64x8 s = fraction - quarter * 0.25, z = s * s;
    const i64x8 quadrant = (i64x8)(quarter + 6755399441055744.0) + (cosine ? 1 : 0);
    f64x8 sine = f64x8{} + 0x1.e3f390d5199c7p+1;
    sine = sine * z - 0x1.e30071d77794ep+3;
    sine = sine * z + 0x1.50782fda3f841p+5;
    sine = sine * z - 0x1.32d2cce2e5dffp+6;
    sine = sine * z + 0x1.466bc677587fap+6;
    sine = sine * z - 0x1.4abbce625be41p+5;
    sine = (sine * z + 0x1.921fb54442d18p+2) * s;
    f64x8 cosine_value = f64x8{} + 0x1.f3dbe088c1f76p+2;
    cosine_value = cosine_value * z - 0x1.a6c9c1f4473d0p+4;
    cosine_value = cosine_value * z + 0x1.e1f4fb60a0dc2p+5;
    cosine_value = cosine_value * z - 0x1.55d3c7dbfd90cp+6;
    cosine_value = cosine_value * z + 0x1.03c1f081b0787p+6;
    cosine_value = cosine_value * z - 0x1.3bd3cc9be458bp+4;
    cosine_value = cosine_value * z + 1.0;
    const f64x8 value = pick((quadrant & 1) != 0, cosine_value, sine);
    return (f64x8)((i64x8)value ^ ((quadrant & 2) << 62));
}
template <bool cosine>
HIPKITTENS_LARGE f32x16 sine_of_turns(f32x16 x) {
    const Wide<f64x8> wide = widen(x);
    const f32x16 finite =
        narrow(Wide<f64x8>{sine_of_turns<cosine>(wide.first), sine_of_turns<cosine>(wide.second)});
    const f32x16 magnitude = (f32x16)((u32x16)x & 0x7fffffff), infinity = (f32x16)(u32x16{} + 0x7f800000u);
    const f32x16 result = pick(magnitude == infinity, (f32x16)(u32x16{} + 0xffc00000u), finite);
    return pick(is_nan(x), (f32x16)((u32x16)x | 0x400000), result);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
