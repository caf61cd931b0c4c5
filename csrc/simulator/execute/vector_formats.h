// simulator/execute/vector_formats.h: 16-bit floats, fp8 and bf8 to and from f32, sixteen lanes at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/execute/lanes.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// f16 in the low half of each lane. A NaN becomes quiet and keeps its payload, as in F16C.
HIPKITTENS_LARGE f32x16 half_to_float(u32x16 half) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)half));
#else
    const u32x16 sign = (half & 0x8000) << 16, exponent = half & 0x7c00, mantissa = half & 0x3ff;
    const u32x16 shifted = (half & 0x7fff) << 13;
    const u32x16 special = shifted | 0x7f800000 | pick(mantissa != 0, u32x16{} + 0x400000, u32x16{});
    const f32x16 tiny = __builtin_convertvector((i32x16)mantissa, f32x16) * 5.9604644775390625e-8f;  // 2^-24
    const u32x16 magnitude =
        pick(exponent == 0, (u32x16)tiny, pick(exponent == 0x7c00, special, shifted + (112u << 23)));
    return (f32x16)(magnitude | sign);
#endif
}

// The same, but a signaling NaN stays signaling.
HIPKITTENS_LARGE f32x16 half_to_float_unquieted(u32x16 half) {
    const u32x16 magnitude = half & 0x7fff;
    const auto signaling = (magnitude > 0x7c00) & (magnitude < 0x7e00);
    return (f32x16)((u32x16)half_to_float(half) & ~((u32x16)signaling & 0x400000));
}

// f32 to f16, to nearest even, zeros in the upper half.
HIPKITTENS_LARGE u32x16 float_to_half(f32x16 value) {
#if defined(__AVX512F__)
    return (u32x16)_mm512_cvtepu16_epi32(_mm512_cvtps_ph((__m512)value, 8));
#else
    const u32x16 bits = (u32x16)value, sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    const u32x16 nan = ((magnitude >> 13) & 0x3ff) | 0x7e00;
    const u32x16 normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
    const u32x16 tiny =
        (u32x16)((f32x16)magnitude + 0.5f) - 0x3f000000;  // ulp of 0.5 is the f16 denormal step
    const u32x16 finite =
        pick(magnitude < 0x38800000, tiny, pick(magnitude >= 0x477ff000, u32x16{} + 0x7c00, normal));
    return sign | pick(magnitude > 0x7f800000, nan, finite);
#endif
}

// f32 to f16, toward zero: values that are too large become the largest finite value.
HIPKITTENS_LARGE u32x16 float_to_half_toward_zero(f32x16 value) {
#if defined(__AVX512F__)
    return (u32x16)_mm512_cvtepu16_epi32(_mm512_cvtps_ph((__m512)value, 8 | 3));
#else
    const u32x16 bits = (u32x16)value, sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    const u32x16 nan = ((magnitude >> 13) & 0x3ff) | 0x7e00;
    const u32x16 normal = (magnitude - (112u << 23)) >> 13;
    const f32x16 small = pick(magnitude < 0x38800000, (f32x16)magnitude, f32x16{});
    const u32x16 tiny = (u32x16) __builtin_convertvector(small * 16777216.0f, i32x16);
    const u32x16 finite =
        pick(magnitude < 0x38800000, tiny, pick(magnitude >= 0x47800000, u32x16{} + 0x7bff, normal));
    return sign | pick(magnitude > 0x7f800000, nan, pick(magnitude == 0x7f800000, u32x16{} + 0x7c00, finite));
#endif
}

HIPKITTENS_INLINE f32x16 bfloat_to_float(u32x16 value) { return (f32x16)(value << 16); }

// f32 to bf16 in the upper half of each lane, to nearest even; the lower half is undefined.
HIPKITTENS_LARGE u32x16 float_to_bfloat_high(f32x16 value) {
    const u32x16 bits = (u32x16)value;
    const u32x16 rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return pick(is_nan(value), bits | 0x400000, rounded);
}
HIPKITTENS_LARGE u32x16 float_to_bfloat(f32x16 value) { return float_to_bfloat_high(value) >> 16; }

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
