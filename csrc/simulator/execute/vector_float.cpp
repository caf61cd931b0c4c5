// simulator/execute/vector_float.cpp: f32 and f16 arithmetic.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_number.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

HIPKITTENS_INLINE f32x16 rounded_to_half(f32x16 a) { return half_to_float(float_to_half(a)); }
// The product of two f16 is exact in f32.
HIPKITTENS_INLINE f32x16 fma_of_halves(f32x16 a, f32x16 b, f32x16 c) {
    return add_round_to_odd<f32x16, i32x16>(a * b, c);
}
HIPKITTENS_INLINE f32x16 mad_of_halves(f32x16 a, f32x16 b, f32x16 c) { return rounded_to_half(a * b) + c; }
HIPKITTENS_INLINE f32x16 settled_fma(f32x16 a, f32x16 b, f32x16 c) {
    f32x16 result = fma(a, b, c);
    settle_nan(result, a, b, c);
    return result;
}
HIPKITTENS_INLINE f32x16 legacy_product(f32x16 a, f32x16 b) {
    return pick((a == 0.0f) | (b == 0.0f), f32x16{}, a * b);
}

HIPKITTENS_INLINE f32x16 magnitude(f32x16 a) { return (f32x16)((u32x16)a & 0x7fffffff); }
HIPKITTENS_INLINE i32x16 z_is_major(f32x16 a, f32x16 b, f32x16 c) {
    return (magnitude(c) >= magnitude(a)) & (magnitude(c) >= magnitude(b));
}
HIPKITTENS_INLINE i32x16 y_is_major(f32x16 a, f32x16 b, f32x16 c) {
    return ~z_is_major(a, b, c) & (magnitude(b) >= magnitude(a));
}
HIPKITTENS_INLINE f32x16 by_major(f32x16 a, f32x16 b, f32x16 c, f32x16 if_x, f32x16 if_y, f32x16 if_z) {
    return pick(z_is_major(a, b, c), if_z, pick(y_is_major(a, b, c), if_y, if_x));
}
HIPKITTENS_INLINE f32x16 by_sign(f32x16 a, f32x16 if_negative, f32x16 otherwise) {
    return pick(a < 0.0f, if_negative, otherwise);
}

// clang-format off: one row an instruction
const Meaning rows[] = {
    FLOAT2(v_add_f32, f32x16, a + b)
    FLOAT2(v_sub_f32, f32x16, a - b)
    FLOAT2(v_subrev_f32, f32x16, b - a)
    FLOAT2(v_mul_f32, f32x16, a * b)
    FLOAT2(v_mul_legacy_f32, f32x16, legacy_product(a, b))
    FLOAT3(v_fma_f32, f32x16, fma(a, b, c))
    FLOAT3(v_fmac_f32, f32x16, fma(a, b, c))
    FLOAT3(v_fmamk_f32, f32x16, fma(a, b, c))
    FLOAT3(v_fmaak_f32, f32x16, fma(a, b, c))
    FLOAT3(v_fma_mix_f32, f32x16, fma(a, b, c))
    MEANING3(v_fma_mixlo_f16, Half, f32x16, f32x16, f32x16, settled_fma(a, b, c))
    MEANING3(v_fma_mixhi_f16, Half, f32x16, f32x16, f32x16, settled_fma(a, b, c))
    MEANING2(v_min_f32, f32x16, f32x16, f32x16, minimum_number(a, b))
    MEANING2(v_max_f32, f32x16, f32x16, f32x16, maximum_number(a, b))
    MEANING3(v_min3_f32, f32x16, f32x16, f32x16, f32x16, minimum_number(minimum_number(a, b), c))
    MEANING3(v_max3_f32, f32x16, f32x16, f32x16, f32x16, maximum_number(maximum_number(a, b), c))
    MEANING3(v_med3_f32, f32x16, f32x16, f32x16, f32x16, median_number(a, b, c))
    MEANING3(v_minimum3_f32, f32x16, f32x16, f32x16, f32x16, minimum(minimum(a, b), c))
    MEANING3(v_maximum3_f32, f32x16, f32x16, f32x16, f32x16, maximum(maximum(a, b), c))
    MEANING1(v_trunc_f32, f32x16, f32x16, round_to_integral<Rounding::toward_zero>(a))
    MEANING1(v_ceil_f32, f32x16, f32x16, round_to_integral<Rounding::up>(a))
    MEANING1(v_floor_f32, f32x16, f32x16, round_to_integral<Rounding::down>(a))
    MEANING1(v_rndne_f32, f32x16, f32x16, round_to_integral<Rounding::nearest_even>(a))
    FLOAT1(v_fract_f32, f32x16, fraction(a))
    MEANING2(v_ldexp_f32, f32x16, f32x16, i32x16, load_exponent(a, b))
    MEANING1(v_frexp_exp_i32_f32, i32x16, f32x16, frexp_exponent(a))
    MEANING1(v_frexp_mant_f32, f32x16, f32x16, frexp_mantissa(a))
    MEANING3(v_cubeid_f32, f32x16, f32x16, f32x16, f32x16,
             by_major(a, b, c, by_sign(a, f32x16{} + 1.0f, f32x16{}), by_sign(b, f32x16{} + 3.0f, f32x16{} + 2.0f),
                      by_sign(c, f32x16{} + 5.0f, f32x16{} + 4.0f)))
    MEANING3(v_cubesc_f32, f32x16, f32x16, f32x16, f32x16, by_major(a, b, c, by_sign(a, c, -c), a, by_sign(c, -a, a)))
    MEANING3(v_cubetc_f32, f32x16, f32x16, f32x16, f32x16, by_major(a, b, c, -b, by_sign(b, -c, c), -b))
    MEANING3(v_cubema_f32, f32x16, f32x16, f32x16, f32x16, 2.0f * by_major(a, b, c, a, b, c))

    FLOAT2(v_add_f16, Half, a + b)
    FLOAT2(v_sub_f16, Half, a - b)
    FLOAT2(v_subrev_f16, Half, b - a)
    FLOAT2(v_mul_f16, Half, a * b)
    FLOAT3(v_fma_f16, Half, fma_of_halves(a, b, c))
    FLOAT3(v_fma_legacy_f16, Half, fma_of_halves(a, b, c))
    FLOAT3(v_mad_f16, Half, mad_of_halves(a, b, c))
    FLOAT3(v_mad_legacy_f16, Half, mad_of_halves(a, b, c))
    FLOAT3(v_mac_f16, Half, mad_of_halves(a, b, c))
    FLOAT3(v_madmk_f16, Half, mad_of_halves(a, b, c))
    FLOAT3(v_madak_f16, Half, mad_of_halves(a, b, c))
    MEANING2(v_min_f16, PlainHalf, PlainHalf, PlainHalf, minimum_number(a, b))
    MEANING2(v_max_f16, PlainHalf, PlainHalf, PlainHalf, maximum_number(a, b))
    MEANING3(v_min3_f16, PlainHalf, PlainHalf, PlainHalf, PlainHalf, minimum_number(minimum_number(a, b), c))
    MEANING3(v_max3_f16, PlainHalf, PlainHalf, PlainHalf, PlainHalf, maximum_number(maximum_number(a, b), c))
    MEANING3(v_med3_f16, PlainHalf, PlainHalf, PlainHalf, PlainHalf, median_number(a, b, c))
    MEANING1(v_trunc_f16, Half, Half, round_to_integral<Rounding::toward_zero>(a))
    MEANING1(v_ceil_f16, Half, Half, round_to_integral<Rounding::up>(a))
    MEANING1(v_floor_f16, Half, Half, round_to_integral<Rounding::down>(a))
    MEANING1(v_rndne_f16, Half, Half, round_to_integral<Rounding::nearest_even>(a))
    FLOAT1(v_fract_f16, Half, pick(fraction(a) > 0.99951171875f, f32x16{} + 0.99951171875f, fraction(a)))
    MEANING2(v_ldexp_f16, Half, Half, LowI16, load_exponent(a, b))
    MEANING1(v_frexp_exp_i16_f16, LowI16, Half, frexp_exponent(a))
    MEANING1(v_frexp_mant_f16, Half, Half, frexp_mantissa(a))
};
// clang-format on

}  // namespace

MeaningList float_meanings() { return list_of(rows); }

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
