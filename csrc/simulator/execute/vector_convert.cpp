// simulator/execute/vector_convert.cpp: conversions between number types.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_number.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

// Rounds toward zero; out-of-range values become the nearest representable value, NaN becomes 0.
HIPKITTENS_LARGE i32x16 to_i32(f32x16 a) {
    const f32x16 number = pick(a != a, f32x16{}, a);
    return pick(number >= 2147483648.0f, i32x16{} + 0x7fffffff, __builtin_convertvector(number, i32x16));
}
HIPKITTENS_LARGE u32x16 to_u32(f32x16 a) {
    const f32x16 number = pick(a > 0.0f, a, f32x16{});
    const auto upper = number >= 2147483648.0f;
    const u32x16 bits = (u32x16) __builtin_convertvector(pick(upper, number - 2147483648.0f, number), i32x16);
    return pick(number >= 4294967296.0f, u32x16{} - 1, bits + ((u32x16)upper & 0x80000000));
}
HIPKITTENS_LARGE f32x16 from_u32(u32x16 a) {
#if defined(__AVX512F__)
    return __builtin_convertvector(a, f32x16);
#else
    // Halve large values, keeping the dropped bit sticky, so that the signed conversion rounds them once.
    const i32x16 large = (i32x16)a < 0;
    const f32x16 value = __builtin_convertvector((i32x16)pick(large, (a >> 1) | (a & 1), a), f32x16);
    return pick(large, value * 2.0f, value);
#endif
}
HIPKITTENS_LARGE f32x16 from_i32(i32x16 a) { return __builtin_convertvector(a, f32x16); }

// f64 to 64-bit integers whose low dword is the result: adding 1.5 * 2^52 leaves the integer in the significand.
HIPKITTENS_LARGE i64x8 integral(f64x8 a) {
    return (i64x8)(a + 6755399441055744.0) - (i64x8)(f64x8{} + 6755399441055744.0);
}
HIPKITTENS_LARGE i64x8 to_i32(f64x8 a) {
    const f64x8 number = pick(a != a, f64x8{}, a);
    const f64x8 clamped = pick(number > 2147483647.0, f64x8{} + 2147483647.0,
                               pick(number < -2147483648.0, f64x8{} - 2147483648.0, number));
    return integral(round_to_integral<Rounding::toward_zero>(clamped));
}
HIPKITTENS_LARGE i64x8 to_u32(f64x8 a) {
    const f64x8 number = pick(a > 0.0, a, f64x8{});
    return integral(round_to_integral<Rounding::toward_zero>(
        pick(number > 4294967295.0, f64x8{} + 4294967295.0, number)));
}
HIPKITTENS_LARGE f64x8 to_f64(i64x8 a) {
    return (f64x8)(a + (i64x8)(f64x8{} + 6755399441055744.0)) - 6755399441055744.0;
}

template <int lowest, int highest>
HIPKITTENS_LARGE i32x16 clamped(i32x16 a) {
    const i32x16 low = pick(a < lowest, i32x16{} + lowest, a);
    return pick(low > highest, i32x16{} + highest, low);
}
HIPKITTENS_LARGE u32x16 packed(u32x16 low, u32x16 high) { return (low & 0xffff) | high << 16; }
HIPKITTENS_LARGE u32x16 packed(i32x16 low, i32x16 high) { return packed((u32x16)low, (u32x16)high); }

// [-1, 1] to [-32767, 32767] and [0, 1] to [0, 65535], to nearest even.
HIPKITTENS_LARGE i32x16 to_signed_norm(f32x16 a) {
    const f32x16 inside = pick(a > -1.0f, pick(a < 1.0f, a, f32x16{} + 1.0f), f32x16{} - 1.0f);
    return pick(
        a != a, i32x16{},
        __builtin_convertvector(round_to_integral<Rounding::nearest_even>(inside * 32767.0f), i32x16));
}
HIPKITTENS_LARGE i32x16 to_unsigned_norm(f32x16 a) {
    const f32x16 inside = pick(a > 0.0f, pick(a < 1.0f, a, f32x16{} + 1.0f), f32x16{});
    return __builtin_convertvector(round_to_integral<Rounding::nearest_even>(inside * 65535.0f), i32x16);
}
HIPKITTENS_LARGE u32x16 to_u8(f32x16 a) { return (u32x16)clamped<0, 255>(to_i32(a)); }
HIPKITTENS_LARGE u32x16 with_byte(u32x16 whole, u32x16 index, u32x16 byte) {
    const u32x16 shift = (index & 3) * 8;
    return (whole & ~((u32x16{} + 0xff) << shift)) | byte << shift;
}

// Stochastic rounding: the random bits, aligned with the bits to be truncated, are added.
HIPKITTENS_LARGE u32x16 to_bfloat_stochastic(f32x16 a, u32x16 random) {
    const u32x16 bits = (u32x16)a, magnitude = bits & 0x7fffffff;
    const u32x16 rounded = (bits + (random >> 16)) >> 16;
    return pick(magnitude >= 0x7f800000, float_to_bfloat(a), rounded);
}
HIPKITTENS_LARGE u32x16 to_half_stochastic(f32x16 a, u32x16 random) {
    const u32x16 bits = (u32x16)a, magnitude = bits & 0x7fffffff;
    const f32x16 bumped = (f32x16)((magnitude + (random >> 19)) | (bits & 0x80000000));
    return pick(magnitude >= 0x7f800000, float_to_half(a), float_to_half_toward_zero(bumped));
}

// clang-format off: one row an instruction
const Meaning rows[] = {
    MEANING1(v_cvt_f32_i32, f32x16, i32x16, from_i32(a))
    MEANING1(v_cvt_f32_u32, f32x16, u32x16, from_u32(a))
    MEANING1(v_cvt_i32_f32, i32x16, f32x16, to_i32(a))
    MEANING1(v_cvt_u32_f32, u32x16, f32x16, to_u32(a))
    MEANING1(v_cvt_rpi_i32_f32, i32x16, f32x16, to_i32(round_to_integral<Rounding::down>(a + 0.5f)))
    MEANING1(v_cvt_flr_i32_f32, i32x16, f32x16, to_i32(round_to_integral<Rounding::down>(a)))
    MEANING1(v_cvt_off_f32_i4, f32x16, i32x16, from_i32((a << 28) >> 28) * 0.0625f)
    MEANING1(v_cvt_f32_ubyte0, f32x16, u32x16, from_i32((i32x16)(a & 0xff)))
    MEANING1(v_cvt_f32_ubyte1, f32x16, u32x16, from_i32((i32x16)(a >> 8 & 0xff)))
    MEANING1(v_cvt_f32_ubyte2, f32x16, u32x16, from_i32((i32x16)(a >> 16 & 0xff)))
    MEANING1(v_cvt_f32_ubyte3, f32x16, u32x16, from_i32((i32x16)(a >> 24)))

    MEANING1(v_cvt_f64_f32, F64, F32As64, a)
    MEANING1(v_cvt_f32_f64, F32As64, F64, a)
    MEANING1(v_cvt_f64_i32, F64, I32As64, to_f64(a))
    MEANING1(v_cvt_f64_u32, F64, U32As64, to_f64((i64x8)a))
    MEANING1(v_cvt_i32_f64, I32As64, F64, to_i32(a))
    MEANING1(v_cvt_u32_f64, I32As64, F64, to_u32(a))

    MEANING1(v_cvt_f16_f32, Half, f32x16, a)
    MEANING1(v_cvt_f32_f16, f32x16, Half, a)
    MEANING1(v_cvt_f16_u16, Half, LowU16, from_i32((i32x16)a))
    MEANING1(v_cvt_f16_i16, Half, LowI16, from_i32(a))
    MEANING1(v_cvt_u16_f16, LowI16, Half, (clamped<0, 65535>(to_i32(a))))
    MEANING1(v_cvt_i16_f16, LowI16, Half, (clamped<-32768, 32767>(to_i32(a))))
    MEANING1(v_cvt_norm_i16_f16, LowI16, Half, to_signed_norm(a))
    MEANING1(v_cvt_norm_u16_f16, LowI16, Half, to_unsigned_norm(a))
    MEANING1(v_cvt_f32_bf16, f32x16, u32x16, bfloat_to_float(a))

    MEANING2(v_cvt_pk_bf16_f32, u32x16, f32x16, f32x16, (float_to_bfloat(a) | (float_to_bfloat_high(b) & 0xffff0000)))
    MEANING2(v_cvt_pk_f16_f32, PackedHalf, f32x16, f32x16, (Wide<f32x16>{a, b}))
    MEANING2(v_cvt_pkrtz_f16_f32, u32x16, f32x16, f32x16, float_to_half_toward_zero(a) | float_to_half_toward_zero(b) << 16)
    MEANING2(v_cvt_pknorm_i16_f32, u32x16, f32x16, f32x16, packed(to_signed_norm(a), to_signed_norm(b)))
    MEANING2(v_cvt_pknorm_u16_f32, u32x16, f32x16, f32x16, packed(to_unsigned_norm(a), to_unsigned_norm(b)))
    MEANING2(v_cvt_pknorm_i16_f16, u32x16, Half, Half, packed(to_signed_norm(a), to_signed_norm(b)))
    MEANING2(v_cvt_pknorm_u16_f16, u32x16, Half, Half, packed(to_unsigned_norm(a), to_unsigned_norm(b)))
    MEANING2(v_cvt_pk_u16_u32, u32x16, u32x16, u32x16,
             packed(pick(a > 0xffff, u32x16{} + 0xffff, a), pick(b > 0xffff, u32x16{} + 0xffff, b)))
    MEANING2(v_cvt_pk_i16_i32, u32x16, i32x16, i32x16, packed(clamped<-32768, 32767>(a), clamped<-32768, 32767>(b)))
    MEANING3(v_cvt_pk_u8_f32, u32x16, f32x16, u32x16, u32x16, with_byte(c, b, to_u8(a)))
    MEANING2(v_cvt_sr_bf16_f32, LowU16, f32x16, u32x16, to_bfloat_stochastic(a, b))
    MEANING2(v_cvt_sr_f16_f32, LowU16, f32x16, u32x16, to_half_stochastic(a, b))
};
// clang-format on

}  // namespace

MeaningList conversion_meanings() { return list_of(rows); }

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
