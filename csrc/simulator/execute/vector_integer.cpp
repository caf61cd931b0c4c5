// simulator/execute/vector_integer.cpp: 32-bit and 16-bit integer, bit and move instructions.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_meaning.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

HIPKITTENS_INLINE u32x16 ones(u32x16 count) { return ((u32x16{} + 1) << (count & 31)) - 1; }

HIPKITTENS_LARGE u32x16 population_count(u32x16 a) {
    a = a - ((a >> 1) & 0x55555555);
    a = (a & 0x33333333) + ((a >> 2) & 0x33333333);
    a = (a + (a >> 4)) & 0x0f0f0f0f;
    return (a * 0x01010101) >> 24;
}
HIPKITTENS_LARGE u32x16 reverse_bits(u32x16 a) {
    a = ((a >> 1) & 0x55555555) | ((a & 0x55555555) << 1);
    a = ((a >> 2) & 0x33333333) | ((a & 0x33333333) << 2);
    a = ((a >> 4) & 0x0f0f0f0f) | ((a & 0x0f0f0f0f) << 4);
    a = ((a >> 8) & 0x00ff00ff) | ((a & 0x00ff00ff) << 8);
    return (a >> 16) | (a << 16);
}
// Index of the lowest set bit; -1 if there is none.
HIPKITTENS_LARGE u32x16 find_lowest(u32x16 a) {
    return pick(a == 0, u32x16{} - 1, population_count((a & (0 - a)) - 1));
}
HIPKITTENS_LARGE u32x16 find_highest(u32x16 a) { return find_lowest(reverse_bits(a)); }

HIPKITTENS_LARGE u32x16 high_product(u32x16 a, u32x16 b) {
    const u32x16 a_low = a & 0xffff, a_high = a >> 16, b_low = b & 0xffff, b_high = b >> 16;
    const u32x16 middle = a_high * b_low + ((a_low * b_low) >> 16);
    return a_high * b_high + (middle >> 16) + (((middle & 0xffff) + a_low * b_high) >> 16);
}
HIPKITTENS_LARGE i32x16 high_product(i32x16 a, i32x16 b) {
    return (i32x16)high_product((u32x16)a, (u32x16)b) - ((a >> 31) & b) - ((b >> 31) & a);
}

HIPKITTENS_INLINE i32x16 signed24(i32x16 a) { return (a << 8) >> 8; }

// {high, low} shifted right by 0..31; returns the low half.
HIPKITTENS_INLINE u32x16 funnel(u32x16 high, u32x16 low, u32x16 count) {
    return (low >> count) | ((high << 1) << (31 - count));
}

// v_perm_b32: byte `sel` of {a, b}; 8..11 the sign of a 16-bit half, 12 zero, above that 0xff.
HIPKITTENS_LARGE u32x16 permute_byte(u32x16 a, u32x16 b, u32x16 sel) {
    const u32x16 shift = (sel & 3) * 8;
    const u32x16 byte = (pick(sel < 4, b, a) >> shift) & 0xff;
    const u32x16 half = pick(sel < 10, b, a) << (16 - (sel & 1) * 16);
    const u32x16 sign = ((u32x16)((i32x16)half >> 31)) & 0xff;
    return pick(sel < 8, byte, pick(sel < 12, sign, pick(sel == 12, u32x16{}, u32x16{} + 0xff)));
}
HIPKITTENS_LARGE u32x16 permute(u32x16 a, u32x16 b, u32x16 sel) {
#if defined(__AVX512BW__)
    if (__builtin_expect(!any((i32x16)((sel & 0xf8f8f8f8) != 0)), 1)) {
        // A byte shuffle covers the sixteen bytes of four lanes: its index is the byte in the lane plus the lane's offset.
        const u32x16 place = {0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c,
                              0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c};
        const __m512i index = (__m512i)((sel & 0x03030303) | place);
        const __mmask64 from_a = _mm512_movepi8_mask((__m512i)(sel << 5));
        return (u32x16)_mm512_mask_shuffle_epi8(_mm512_shuffle_epi8((__m512i)b, index), from_a, (__m512i)a,
                                                index);
    }
#endif
    return permute_byte(a, b, sel & 0xff) | permute_byte(a, b, sel >> 8 & 0xff) << 8 |
           permute_byte(a, b, sel >> 16 & 0xff) << 16 | permute_byte(a, b, sel >> 24) << 24;
}

HIPKITTENS_INLINE u32x16 absolute_difference(u32x16 a, u32x16 b) { return pick(a > b, a - b, b - a); }
template <bool skip_zero>
HIPKITTENS_LARGE u32x16 sum_of_byte_differences(u32x16 a, u32x16 b) {
    u32x16 sum = {};
    for (int shift = 0; shift < 32; shift += 8) {
        const u32x16 x = (a >> shift) & 0xff, y = (b >> shift) & 0xff;
        sum += skip_zero ? pick(y == 0, u32x16{}, absolute_difference(x, y)) : absolute_difference(x, y);
    }
    return sum;
}
HIPKITTENS_LARGE u32x16 lerp_bytes(u32x16 a, u32x16 b, u32x16 c) {
    u32x16 result = {};
    for (int shift = 0; shift < 32; shift += 8) {
        result |= ((((a >> shift) & 0xff) + ((b >> shift) & 0xff) + ((c >> shift) & 1)) >> 1) << shift;
    }
    return result;
}

template <class Vector>
HIPKITTENS_INLINE Vector smaller(Vector a, Vector b) {
    return pick(a < b, a, b);
}
template <class Vector>
HIPKITTENS_INLINE Vector larger(Vector a, Vector b) {
    return pick(a > b, a, b);
}
template <class Vector>
HIPKITTENS_LARGE Vector median(Vector a, Vector b, Vector c) {
    return larger(smaller(a, b), smaller(larger(a, b), c));
}
template <int lowest, int highest>
HIPKITTENS_INLINE u32x16 saturated(i32x16 value) {
    return (u32x16)smaller(larger(value, i32x16{} + lowest), i32x16{} + highest);
}

HIPKITTENS_LARGE WithBit<u32x16, i32x16> add_with_carry(u32x16 a, u32x16 b, i32x16 carry) {
    const u32x16 partial = a + b, sum = partial - (u32x16)carry;
    return {sum, (partial < a) | (carry & (sum == 0))};
}
HIPKITTENS_LARGE WithBit<u32x16, i32x16> subtract_with_borrow(u32x16 a, u32x16 b, i32x16 borrow) {
    return {a - b + (u32x16)borrow, (a < b) | (borrow & (a == b))};
}

#define WITH_BIT2(opcode, ...) \
    {isa::Opcode::opcode,      \
     as_with_bit<u32x16, u32x16, u32x16>(HIPKITTENS_LAMBDA((auto a, auto b), __VA_ARGS__))},
#define WITH_BIT3(opcode, ...)                                           \
    {isa::Opcode::opcode, as_with_bit<u32x16, u32x16, u32x16, LaneMask>( \
                              HIPKITTENS_LAMBDA((auto a, auto b, auto c), __VA_ARGS__))},

// Counts the set bits of a below each lane's number.
template <int half>
const Step* count_below(Wave* wave, const Step* step) {
    const u32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int quarter = 0; quarter < 4; ++quarter) {
        const i32x16 index = (i32x16)lane + (16 * quarter - 32 * half);
        const u32x16 mask = pick(index >= 32, u32x16{} - 1, pick(index < 0, u32x16{}, ones((u32x16)index)));
        store_quarter(wave, step->destination, quarter,
                      population_count(source<u32x16>(wave, step, 0, quarter) & mask) +
                          source<u32x16>(wave, step, 1, quarter));
    }
    return step + 1;
}

// The truth table of v_bitop3 (step.immediate) as a sum of its product terms.
const Step* ternary_logic(Wave* wave, const Step* step) {
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 a = source<u32x16>(wave, step, 0, quarter), b = source<u32x16>(wave, step, 1, quarter),
                     c = source<u32x16>(wave, step, 2, quarter);
        u32x16 result = {};
        for (int term = 0; term < 8; ++term) {
            if (step->immediate >> term & 1)
                result |= (term & 4 ? a : ~a) & (term & 2 ? b : ~b) & (term & 1 ? c : ~c);
        }
        store_quarter(wave, step->destination, quarter, result);
    }
    return step + 1;
}

// clang-format off: one row an instruction
const Meaning rows[] = {
    MEANING1(v_mov_b32, u32x16, u32x16, a)
    MEANING1(v_accvgpr_read_b32, u32x16, u32x16, a)
    MEANING1(v_accvgpr_write_b32, u32x16, u32x16, a)
    MEANING1(v_accvgpr_mov_b32, u32x16, u32x16, a)
    MEANING1(v_not_b32, u32x16, u32x16, ~a)
    MEANING1(v_bfrev_b32, u32x16, u32x16, reverse_bits(a))
    MEANING1(v_ffbh_u32, u32x16, u32x16, find_highest(a))
    MEANING1(v_ffbl_b32, u32x16, u32x16, find_lowest(a))
    MEANING1(v_ffbh_i32, u32x16, u32x16, find_highest(a ^ (u32x16)((i32x16)a >> 31)))
    MEANING1(v_prng_b32, u32x16, u32x16, (a << 1) ^ (((u32x16)((i32x16)a >> 31)) & 197))
    MEANING1(v_sat_pk_u8_i16, u32x16, i32x16, saturated<0, 255>((a << 16) >> 16) | saturated<0, 255>(a >> 16) << 8)
    MEANING3(v_cndmask_b32, u32x16, u32x16, u32x16, LaneMask, pick(c, b, a))

    MEANING2(v_add_u32, u32x16, u32x16, u32x16, a + b)
    MEANING2(v_sub_u32, u32x16, u32x16, u32x16, a - b)
    MEANING2(v_subrev_u32, u32x16, u32x16, u32x16, b - a)
    MEANING2(v_add_i32, u32x16, u32x16, u32x16, a + b)
    MEANING2(v_sub_i32, u32x16, u32x16, u32x16, a - b)
    WITH_BIT2(v_add_co_u32, add_with_carry(a, b, i32x16{}))
    WITH_BIT2(v_sub_co_u32, subtract_with_borrow(a, b, i32x16{}))
    WITH_BIT2(v_subrev_co_u32, subtract_with_borrow(b, a, i32x16{}))
    WITH_BIT3(v_addc_co_u32, add_with_carry(a, b, c))
    WITH_BIT3(v_subb_co_u32, subtract_with_borrow(a, b, c))
    WITH_BIT3(v_subbrev_co_u32, subtract_with_borrow(b, a, c))
    MEANING2(v_mul_lo_u32, u32x16, u32x16, u32x16, a * b)
    MEANING2(v_mul_hi_u32, u32x16, u32x16, u32x16, high_product(a, b))
    MEANING2(v_mul_hi_i32, i32x16, i32x16, i32x16, high_product(a, b))
    MEANING2(v_mul_i32_i24, u32x16, i32x16, i32x16, (u32x16)signed24(a) * (u32x16)signed24(b))
    MEANING2(v_mul_u32_u24, u32x16, u32x16, u32x16, (a & 0xffffff) * (b & 0xffffff))
    MEANING2(v_mul_hi_i32_i24, i32x16, i32x16, i32x16, high_product(signed24(a), signed24(b)))
    MEANING2(v_mul_hi_u32_u24, u32x16, u32x16, u32x16, high_product(a & 0xffffff, b & 0xffffff))
    MEANING3(v_mad_i32_i24, u32x16, i32x16, i32x16, u32x16, (u32x16)signed24(a) * (u32x16)signed24(b) + c)
    MEANING3(v_mad_u32_u24, u32x16, u32x16, u32x16, u32x16, (a & 0xffffff) * (b & 0xffffff) + c)
    MEANING3(v_mad_u32_u16, u32x16, LowU16, LowU16, u32x16, a * b + c)
    MEANING3(v_mad_i32_i16, u32x16, LowI16, LowI16, u32x16, (u32x16)(a * b) + c)
    MEANING2(v_min_i32, i32x16, i32x16, i32x16, smaller(a, b))
    MEANING2(v_max_i32, i32x16, i32x16, i32x16, larger(a, b))
    MEANING2(v_min_u32, u32x16, u32x16, u32x16, smaller(a, b))
    MEANING2(v_max_u32, u32x16, u32x16, u32x16, larger(a, b))
    MEANING3(v_min3_i32, i32x16, i32x16, i32x16, i32x16, smaller(smaller(a, b), c))
    MEANING3(v_max3_i32, i32x16, i32x16, i32x16, i32x16, larger(larger(a, b), c))
    MEANING3(v_med3_i32, i32x16, i32x16, i32x16, i32x16, median(a, b, c))
    MEANING3(v_min3_u32, u32x16, u32x16, u32x16, u32x16, smaller(smaller(a, b), c))
    MEANING3(v_max3_u32, u32x16, u32x16, u32x16, u32x16, larger(larger(a, b), c))
    MEANING3(v_med3_u32, u32x16, u32x16, u32x16, u32x16, median(a, b, c))

    MEANING2(v_and_b32, u32x16, u32x16, u32x16, a & b)
    MEANING2(v_or_b32, u32x16, u32x16, u32x16, a | b)
    MEANING2(v_xor_b32, u32x16, u32x16, u32x16, a ^ b)
    MEANING2(v_xnor_b32, u32x16, u32x16, u32x16, ~(a ^ b))
    MEANING2(v_lshlrev_b32, u32x16, u32x16, u32x16, b << (a & 31))
    MEANING2(v_lshrrev_b32, u32x16, u32x16, u32x16, b >> (a & 31))
    MEANING2(v_ashrrev_i32, i32x16, i32x16, i32x16, b >> (a & 31))
    MEANING3(v_and_or_b32, u32x16, u32x16, u32x16, u32x16, (a & b) | c)
    MEANING3(v_or3_b32, u32x16, u32x16, u32x16, u32x16, a | b | c)
    MEANING3(v_xad_u32, u32x16, u32x16, u32x16, u32x16, (a ^ b) + c)
    MEANING3(v_add3_u32, u32x16, u32x16, u32x16, u32x16, a + b + c)
    MEANING3(v_lshl_or_b32, u32x16, u32x16, u32x16, u32x16, (a << (b & 31)) | c)
    MEANING3(v_lshl_add_u32, u32x16, u32x16, u32x16, u32x16, (a << (b & 31)) + c)
    MEANING3(v_add_lshl_u32, u32x16, u32x16, u32x16, u32x16, (a + b) << (c & 31))
    MEANING3(v_bfe_u32, u32x16, u32x16, u32x16, u32x16, (a >> (b & 31)) & ones(c))
    MEANING3(v_bfe_i32, i32x16, i32x16, i32x16, i32x16,
             pick((c & 31) == 0, i32x16{}, ((a >> (b & 31)) << (-c & 31)) >> (-c & 31)))
    MEANING3(v_bfi_b32, u32x16, u32x16, u32x16, u32x16, (a & b) | (~a & c))
    MEANING2(v_bfm_b32, u32x16, u32x16, u32x16, ones(a) << (b & 31))
    MEANING3(v_alignbit_b32, u32x16, u32x16, u32x16, u32x16, funnel(a, b, c & 31))
    MEANING3(v_alignbyte_b32, u32x16, u32x16, u32x16, u32x16, funnel(a, b, (c & 3) * 8))
    MEANING3(v_perm_b32, u32x16, u32x16, u32x16, u32x16, permute(a, b, c))
    MEANING2(v_bcnt_u32_b32, u32x16, u32x16, u32x16, population_count(a) + b)
    {isa::Opcode::v_mbcnt_lo_u32_b32, count_below<0>},
    {isa::Opcode::v_mbcnt_hi_u32_b32, count_below<1>},
    {isa::Opcode::v_bitop3_b32, ternary_logic},
    {isa::Opcode::v_bitop3_b16, ternary_logic},
    MEANING3(v_sad_u8, u32x16, u32x16, u32x16, u32x16, sum_of_byte_differences<false>(a, b) + c)
    MEANING3(v_sad_hi_u8, u32x16, u32x16, u32x16, u32x16, (sum_of_byte_differences<false>(a, b) << 16) + c)
    MEANING3(v_msad_u8, u32x16, u32x16, u32x16, u32x16, sum_of_byte_differences<true>(a, b) + c)
    MEANING3(v_sad_u16, u32x16, u32x16, u32x16, u32x16,
             absolute_difference(a & 0xffff, b & 0xffff) + absolute_difference(a >> 16, b >> 16) + c)
    MEANING3(v_sad_u32, u32x16, u32x16, u32x16, u32x16, absolute_difference(a, b) + c)
    MEANING3(v_lerp_u8, u32x16, u32x16, u32x16, u32x16, lerp_bytes(a, b, c))
    MEANING3(v_ashr_pk_i8_i32, u32x16, i32x16, i32x16, i32x16,
             (saturated<-128, 127>(a >> (c & 31)) & 0xff) | (saturated<-128, 127>(b >> (c & 31)) & 0xff) << 8)
    MEANING3(v_ashr_pk_u8_i32, u32x16, i32x16, i32x16, i32x16,
             saturated<0, 255>(a >> (c & 31)) | saturated<0, 255>(b >> (c & 31)) << 8)

    MEANING2(v_add_u16, LowU16, LowU16, LowU16, a + b)
    MEANING2(v_sub_u16, LowU16, LowU16, LowU16, a - b)
    MEANING2(v_subrev_u16, LowU16, LowU16, LowU16, b - a)
    MEANING2(v_add_i16, LowU16, LowU16, LowU16, a + b)
    MEANING2(v_sub_i16, LowU16, LowU16, LowU16, a - b)
    MEANING2(v_mul_lo_u16, LowU16, LowU16, LowU16, a * b)
    MEANING2(v_lshlrev_b16, LowU16, LowU16, LowU16, b << (a & 15))
    MEANING2(v_lshrrev_b16, LowU16, LowU16, LowU16, b >> (a & 15))
    MEANING2(v_ashrrev_i16, LowU16, LowI16, LowI16, b >> (a & 15))
    MEANING2(v_max_u16, LowU16, LowU16, LowU16, larger(a, b))
    MEANING2(v_min_u16, LowU16, LowU16, LowU16, smaller(a, b))
    MEANING2(v_max_i16, LowU16, LowI16, LowI16, larger(a, b))
    MEANING2(v_min_i16, LowU16, LowI16, LowI16, smaller(a, b))
    MEANING3(v_max3_u16, LowU16, LowU16, LowU16, LowU16, larger(larger(a, b), c))
    MEANING3(v_min3_u16, LowU16, LowU16, LowU16, LowU16, smaller(smaller(a, b), c))
    MEANING3(v_med3_u16, LowU16, LowU16, LowU16, LowU16, median(a, b, c))
    MEANING3(v_max3_i16, LowU16, LowI16, LowI16, LowI16, larger(larger(a, b), c))
    MEANING3(v_min3_i16, LowU16, LowI16, LowI16, LowI16, smaller(smaller(a, b), c))
    MEANING3(v_med3_i16, LowU16, LowI16, LowI16, LowI16, median(a, b, c))
    MEANING3(v_mad_u16, LowU16, LowU16, LowU16, LowU16, a * b + c)
    MEANING3(v_mad_i16, LowU16, LowU16, LowU16, LowU16, a * b + c)
    MEANING3(v_mad_legacy_u16, LowU16, LowU16, LowU16, LowU16, a * b + c)
    MEANING3(v_mad_legacy_i16, LowU16, LowU16, LowU16, LowU16, a * b + c)
    MEANING2(v_pack_b32_f16, u32x16, LowU16, LowU16, a | b << 16)
};
// clang-format on

// With clamp an integer result saturates instead of wrapping around.
// clang-format off: one row per instruction
const Meaning saturating_rows[] = {
    MEANING2(v_add_u32, u32x16, u32x16, u32x16, pick(a + b < a, u32x16{} - 1, a + b))
    MEANING2(v_sub_u32, u32x16, u32x16, u32x16, pick(a < b, u32x16{}, a - b))
    MEANING2(v_subrev_u32, u32x16, u32x16, u32x16, pick(b < a, u32x16{}, b - a))
    MEANING2(v_add_i32, u32x16, u32x16, u32x16,
             pick((i32x16)(~(a ^ b) & (a ^ (a + b))) < 0, 0x7fffffff + (a >> 31), a + b))
    MEANING2(v_sub_i32, u32x16, u32x16, u32x16,
             pick((i32x16)((a ^ b) & (a ^ (a - b))) < 0, 0x7fffffff + (a >> 31), a - b))
    MEANING2(v_add_u16, LowU16, LowU16, LowU16, smaller(a + b, u32x16{} + 0xffff))
    MEANING2(v_sub_u16, LowU16, LowU16, LowU16, pick(a < b, u32x16{}, a - b))
    MEANING2(v_subrev_u16, LowU16, LowU16, LowU16, pick(b < a, u32x16{}, b - a))
    MEANING2(v_add_i16, LowU16, LowI16, LowI16, saturated<-32768, 32767>(a + b))
    MEANING2(v_sub_i16, LowU16, LowI16, LowI16, saturated<-32768, 32767>(a - b))
    MEANING3(v_mad_u16, LowU16, LowU16, LowU16, LowU16,
             pick((a * b > 0xffff) | (a * b + c > 0xffff), u32x16{} + 0xffff, a * b + c))
    MEANING3(v_mad_i16, LowU16, LowI16, LowI16, LowI16, saturated<-32768, 32767>(a * b + c))
    MEANING2(v_pk_add_u16, u16x32, u16x32, u16x32, pick((u16x32)(a + b) < a, u16x32{} - 1, a + b))
    MEANING2(v_pk_sub_u16, u16x32, u16x32, u16x32, pick(a < b, u16x32{}, a - b))
    MEANING2(v_pk_add_i16, u16x32, u16x32, u16x32,
             pick((i16x32)(~(a ^ b) & (a ^ (a + b))) < 0, 0x7fff + (a >> 15), a + b))
    MEANING2(v_pk_sub_i16, u16x32, u16x32, u16x32,
             pick((i16x32)((a ^ b) & (a ^ (a - b))) < 0, 0x7fff + (a >> 15), a - b))
};
// clang-format on

}  // namespace

MeaningList integer_meanings() { return list_of(rows); }
MeaningList saturating_meanings() { return list_of(saturating_rows); }

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
