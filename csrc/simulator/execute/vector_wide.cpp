// simulator/execute/vector_wide.cpp: 64-bit integer and f64 instructions.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_number.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

HIPKITTENS_INLINE WithBit<Wide<u64x8>, Wide<i64x8>> multiply_add(Wide<u64x8> a, Wide<u64x8> b,
                                                                 Wide<u64x8> c) {
    const u64x8 first = a.first * b.first + c.first, second = a.second * b.second + c.second;
    return {{first, second}, {first < c.first, second < c.second}};
}
// The sign of the sum in 65 bits.
HIPKITTENS_INLINE i64x8 is_negative(i64x8 product, i64x8 c, i64x8 sum) {
    return ((product & c) | ((product | c) & sum)) < 0;
}
HIPKITTENS_INLINE WithBit<Wide<i64x8>, Wide<i64x8>> multiply_add(Wide<i64x8> a, Wide<i64x8> b,
                                                                 Wide<i64x8> c) {
    const i64x8 p = a.first * b.first, q = a.second * b.second;
    const i64x8 first = (i64x8)((u64x8)p + (u64x8)c.first), second = (i64x8)((u64x8)q + (u64x8)c.second);
    return {{first, second}, {is_negative(p, c.first, first), is_negative(q, c.second, second)}};
}

// clang-format off: one row an instruction
const Meaning rows[] = {
    MEANING1(v_mov_b64, U64, U64, a)
    MEANING2(v_lshlrev_b64, U64, U32As64, U64, b << (a & 63))
    MEANING2(v_lshrrev_b64, U64, U32As64, U64, b >> (a & 63))
    MEANING2(v_ashrrev_i64, I64, I32As64, I64, b >> (a & 63))
    MEANING3(v_lshl_add_u64, U64, U64, U32As64, U64, (a << (b & 7)) + c)
    {isa::Opcode::v_mad_u64_u32,
     as_with_bit<U64, U32As64, U32As64, U64>(HIPKITTENS_LAMBDA((auto a, auto b, auto c), multiply_add(a, b, c)))},
    {isa::Opcode::v_mad_i64_i32,
     as_with_bit<I64, I32As64, I32As64, I64>(HIPKITTENS_LAMBDA((auto a, auto b, auto c), multiply_add(a, b, c)))},

    FLOAT2(v_add_f64, F64, a + b)
    FLOAT2(v_mul_f64, F64, a * b)
    FLOAT3(v_fma_f64, F64, fma(a, b, c))
    FLOAT3(v_fmac_f64, F64, fma(a, b, c))
    MEANING2(v_min_f64, F64, F64, F64, minimum_number(a, b))
    MEANING2(v_max_f64, F64, F64, F64, maximum_number(a, b))
    MEANING1(v_trunc_f64, F64, F64, round_to_integral<Rounding::toward_zero>(a))
    MEANING1(v_ceil_f64, F64, F64, round_to_integral<Rounding::up>(a))
    MEANING1(v_floor_f64, F64, F64, round_to_integral<Rounding::down>(a))
    MEANING1(v_rndne_f64, F64, F64, round_to_integral<Rounding::nearest_even>(a))
    FLOAT1(v_fract_f64, F64, fraction(a))
    MEANING2(v_ldexp_f64, F64, F64, I32As64, pick(a != a, quiet(a), load_exponent(a, b)))
    MEANING1(v_frexp_exp_i32_f64, I32As64, F64, frexp_exponent(a))
    MEANING1(v_frexp_mant_f64, F64, F64, frexp_mantissa(a))
};
// clang-format on

}  // namespace

MeaningList wide_meanings() { return list_of(rows); }

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
