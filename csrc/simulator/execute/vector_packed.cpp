// simulator/execute/vector_packed.cpp: two values per register (VOP3P) and dot products. The halves have already been selected by
// op_sel: a packed source holds the low result's operand in its low half and the high result's in its high half.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_number.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

struct PackedPlainHalf {};  // the same, keeping signaling NaNs
struct PackedBfloat {};     // two bf16, read only
struct PackedFloat {};      // two f32 in a register pair
struct PackedDword {};      // two dwords in a register pair

template <>
struct Access<PackedPlainHalf> : Access<PackedHalf> {
    HIPKITTENS_INLINE Wide<f32x16> read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        const u32x16 both = load_quarter<u32x16>(wave, offset, stride, quarter);
        return {half_to_float_unquieted(both & 0xffff), half_to_float_unquieted(both >> 16)};
    }
};
template <>
struct Access<PackedBfloat> {
    HIPKITTENS_INLINE Wide<f32x16> read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        const u32x16 both = load_quarter<u32x16>(wave, offset, stride, quarter);
        return {bfloat_to_float(both), (f32x16)(both & 0xffff0000)};
    }
};
template <class Vector>
struct AccessTwoRows {
    HIPKITTENS_INLINE Wide<Vector> read(const Wave* wave, uint32_t offset, uint32_t stride, int quarter) {
        return {load_quarter<Vector>(wave, offset, stride, quarter),
                load_quarter<Vector>(wave, next_register(offset, stride), stride, quarter)};
    }
    HIPKITTENS_INLINE void write(Wave* wave, uint32_t offset, int quarter, uint64_t mask,
                                 Wide<Vector> value) {
        store_quarter(wave, offset, quarter, mask, value.first);
        store_quarter(wave, offset + layout::vector_row_bytes, quarter, mask, value.second);
    }
};
template <>
struct Access<PackedFloat> : AccessTwoRows<f32x16> {};
template <>
struct Access<PackedDword> : AccessTwoRows<u32x16> {};

namespace {

HIPKITTENS_INLINE f32x16 fma_of_halves(f32x16 a, f32x16 b, f32x16 c) {
    return add_round_to_odd<f32x16, i32x16>(a * b, c);
}

HIPKITTENS_INLINE f32x16 dot_of_halves(Wide<f32x16> a, Wide<f32x16> b, f32x16 c) {
    const f32x16 partial = fma(a.first, b.first, c), result = fma(a.second, b.second, partial);
    return pick(result != result, first_nan(result, a.first, b.first, a.second, b.second, c), result);
}
HIPKITTENS_INLINE f32x16 dot_of_bfloats(Wide<f32x16> a, Wide<f32x16> b, f32x16 c) {
    const f32x16 result = a.first * b.first + a.second * b.second + c;
    return pick(result != result, first_nan(result, a.first, b.first, a.second, b.second, c), result);
}

// Sum of the products of elements of `bits` bits.
template <int bits>
HIPKITTENS_INLINE u32x16 unsigned_dot(u32x16 a, u32x16 b, u32x16 c) {
    for (int shift = 0; shift < 32; shift += bits) {
        c += ((a << (32 - bits - shift)) >> (32 - bits)) * ((b << (32 - bits - shift)) >> (32 - bits));
    }
    return c;
}
template <int bits>
HIPKITTENS_INLINE u32x16 signed_dot(i32x16 a, i32x16 b, u32x16 c) {
    for (int shift = 0; shift < 32; shift += bits) {
        c += (u32x16)((a << (32 - bits - shift)) >> (32 - bits)) *
             (u32x16)((b << (32 - bits - shift)) >> (32 - bits));
    }
    return c;
}

// clang-format off: one row an instruction
const Meaning rows[] = {
    MEANING3(v_pk_mad_i16, u16x32, u16x32, u16x32, u16x32, a * b + c)
    MEANING3(v_pk_mad_u16, u16x32, u16x32, u16x32, u16x32, a * b + c)
    MEANING2(v_pk_mul_lo_u16, u16x32, u16x32, u16x32, a * b)
    MEANING2(v_pk_add_i16, u16x32, u16x32, u16x32, a + b)
    MEANING2(v_pk_add_u16, u16x32, u16x32, u16x32, a + b)
    MEANING2(v_pk_sub_i16, u16x32, u16x32, u16x32, a - b)
    MEANING2(v_pk_sub_u16, u16x32, u16x32, u16x32, a - b)
    MEANING2(v_pk_lshlrev_b16, u16x32, u16x32, u16x32, b << (a & 15))
    MEANING2(v_pk_lshrrev_b16, u16x32, u16x32, u16x32, b >> (a & 15))
    MEANING2(v_pk_ashrrev_i16, i16x32, i16x32, i16x32, b >> (a & 15))
    MEANING2(v_pk_max_i16, i16x32, i16x32, i16x32, pick(a > b, a, b))
    MEANING2(v_pk_min_i16, i16x32, i16x32, i16x32, pick(a < b, a, b))
    MEANING2(v_pk_max_u16, u16x32, u16x32, u16x32, pick(a > b, a, b))
    MEANING2(v_pk_min_u16, u16x32, u16x32, u16x32, pick(a < b, a, b))

    FLOAT2(v_pk_add_f16, PackedHalf, a + b)
    FLOAT2(v_pk_mul_f16, PackedHalf, a * b)
    FLOAT3(v_pk_fma_f16, PackedHalf, fma_of_halves(a, b, c))
    FLOAT3(v_pk_fmac_f16, PackedHalf, fma_of_halves(a, b, c))
    MEANING2(v_pk_min_f16, PackedPlainHalf, PackedPlainHalf, PackedPlainHalf, minimum_number(a, b))
    MEANING2(v_pk_max_f16, PackedPlainHalf, PackedPlainHalf, PackedPlainHalf, maximum_number(a, b))
    MEANING3(v_pk_minimum3_f16, PackedPlainHalf, PackedPlainHalf, PackedPlainHalf, PackedPlainHalf, minimum(minimum(a, b), c))
    MEANING3(v_pk_maximum3_f16, PackedPlainHalf, PackedPlainHalf, PackedPlainHalf, PackedPlainHalf, maximum(maximum(a, b), c))

    FLOAT2(v_pk_add_f32, PackedFloat, a + b)
    FLOAT2(v_pk_mul_f32, PackedFloat, a * b)
    FLOAT3(v_pk_fma_f32, PackedFloat, fma(a, b, c))
    // op_sel has moved the dword selected from each source into its low register.
    MEANING2(v_pk_mov_b32, PackedDword, u32x16, u32x16, (Wide<u32x16>{a, b}))

    MEANING3(v_dot2_f32_f16, f32x16, PackedHalf, PackedHalf, f32x16, dot_of_halves(a, b, c))
    MEANING3(v_dot2c_f32_f16, f32x16, PackedHalf, PackedHalf, f32x16, dot_of_halves(a, b, c))
    MEANING3(v_dot2_f32_bf16, f32x16, PackedBfloat, PackedBfloat, f32x16, dot_of_bfloats(a, b, c))
    MEANING3(v_dot2c_f32_bf16, f32x16, PackedBfloat, PackedBfloat, f32x16, dot_of_bfloats(a, b, c))
    MEANING3(v_dot2_i32_i16, u32x16, i32x16, i32x16, u32x16, signed_dot<16>(a, b, c))
    MEANING3(v_dot2c_i32_i16, u32x16, i32x16, i32x16, u32x16, signed_dot<16>(a, b, c))
    MEANING3(v_dot2_u32_u16, u32x16, u32x16, u32x16, u32x16, unsigned_dot<16>(a, b, c))
    MEANING3(v_dot4_i32_i8, u32x16, i32x16, i32x16, u32x16, signed_dot<8>(a, b, c))
    MEANING3(v_dot4c_i32_i8, u32x16, i32x16, i32x16, u32x16, signed_dot<8>(a, b, c))
    MEANING3(v_dot4_u32_u8, u32x16, u32x16, u32x16, u32x16, unsigned_dot<8>(a, b, c))
    MEANING3(v_dot8_i32_i4, u32x16, i32x16, i32x16, u32x16, signed_dot<4>(a, b, c))
    MEANING3(v_dot8c_i32_i4, u32x16, i32x16, i32x16, u32x16, signed_dot<4>(a, b, c))
    MEANING3(v_dot8_u32_u4, u32x16, u32x16, u32x16, u32x16, unsigned_dot<4>(a, b, c))
};
// clang-format on

}  // namespace

MeaningList packed_meanings() { return list_of(rows); }

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
