// simulator/execute/vector_lanewise.cpp: instructions too rare for vector code, one lane at a time: sums of differences of
// four windows, the digits of 2/pi, and integer results that saturate because clamp is set.
// SPDX-License-Identifier: MIT
#include "simulator/execute/vector_meaning.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {
namespace {

using isa::Opcode;

uint32_t read_dword(const Wave* wave, uint32_t offset, uint32_t stride, int lane) {
    uint32_t value;
    memcpy(
        &value,
        at(wave, offset + static_cast<uint32_t>(lane / 16) * stride + 4 * static_cast<uint32_t>(lane % 16)),
        4);
    return value;
}
// Dword `number` of source `index`.
uint32_t source_dword(const Wave* wave, const Step* step, int index, int lane, uint32_t number = 0) {
    return read_dword(wave, next_register(step->source[index], step->stride[index], number),
                      step->stride[index], lane);
}
uint64_t source_qword(const Wave* wave, const Step* step, int index, int lane) {
    return source_dword(wave, step, index, lane) | uint64_t{source_dword(wave, step, index, lane, 1)} << 32;
}

// Computes all results before any register changes: a destination may overlap a source.
template <int dwords, class Function>
const Step* each_lane(Wave* wave, const Step* step, Function function) {
    uint32_t results[64][dwords];
    for (uint64_t left = wave->exec; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        function(lane, results[lane]);
    }
    for (uint64_t left = wave->exec; left; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        for (int i = 0; i < dwords; ++i)
            memcpy(at(wave, step->destination + static_cast<uint32_t>(i) * layout::vector_row_bytes +
                                4 * static_cast<uint32_t>(lane)),
                   &results[lane][i], 4);
    }
    return step + 1;
}

template <int64_t lowest, int64_t highest>
uint32_t saturated(int64_t value) {
    return static_cast<uint32_t>(value < lowest ? lowest : value > highest ? highest : value);
}
uint32_t saturated_u32(int64_t value) { return saturated<0, 0xffffffff>(value); }
uint32_t saturated_i32(int64_t value) { return saturated<INT32_MIN, INT32_MAX>(value); }
uint32_t saturated_u16(int64_t value) { return saturated<0, 0xffff>(value); }
uint32_t saturated_i16(int64_t value) { return saturated<-32768, 32767>(value) & 0xffff; }

template <class Function>
const Step* three_dwords(Wave* wave, const Step* step, Function function) {
    return each_lane<1>(wave, step, [&](int lane, uint32_t* result) {
        *result = function(source_dword(wave, step, 0, lane), source_dword(wave, step, 1, lane),
                           source_dword(wave, step, 2, lane));
    });
}

// ---- Differences.

// Sum over the four bytes of `b` of the absolute differences from those of `a`; if masked, bytes of the
// reference `b` that are 0 are skipped.
uint32_t byte_differences(uint32_t a, uint32_t b, bool masked) {
    uint32_t sum = 0;
    for (int shift = 0; shift < 32; shift += 8) {
        const int x = a >> shift & 0xff, y = b >> shift & 0xff;
        if (masked && y == 0) continue;
        sum += static_cast<uint32_t>(x < y ? y - x : x - y);
    }
    return sum;
}
template <bool masked, bool clamped>
const Step* four_windows_u16(Wave* wave, const Step* step) {
    return each_lane<2>(wave, step, [&](int lane, uint32_t* result) {
        const uint64_t window = source_qword(wave, step, 0, lane), old = source_qword(wave, step, 2, lane);
        const uint32_t reference = source_dword(wave, step, 1, lane);
        uint64_t packed = 0;
        for (int i = 0; i < 4; ++i) {
            const uint32_t sum = byte_differences(static_cast<uint32_t>(window >> 8 * i), reference, masked) +
                                 (old >> 16 * i & 0xffff);
            packed |= uint64_t{clamped ? saturated_u16(sum) : sum & 0xffff} << 16 * i;
        }
        result[0] = static_cast<uint32_t>(packed);
        result[1] = static_cast<uint32_t>(packed >> 32);
    });
}
template <bool clamped>
const Step* four_windows_u32(Wave* wave, const Step* step) {
    return each_lane<4>(wave, step, [&](int lane, uint32_t* result) {
        const uint64_t window = source_qword(wave, step, 0, lane);
        const uint32_t reference = source_dword(wave, step, 1, lane);
        for (uint32_t i = 0; i < 4; ++i) {
            const uint64_t sum =
                uint64_t{byte_differences(static_cast<uint32_t>(window >> 8 * i), reference, true)} +
                source_dword(wave, step, 2, lane, i);
            result[i] = clamped ? saturated_u32(static_cast<int64_t>(sum)) : static_cast<uint32_t>(sum);
        }
    });
}

// ---- Digits of 2/pi: 1201 bits after the point, the first in the highest bit.

constexpr uint32_t two_over_pi[40] = {
    0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561,
    0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e, 0xe88235f5, 0x2ebb4484,
    0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b, 0x1ff897ff, 0xde05980f,
    0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d, 0x7527bac7, 0xebe5f17b,
    0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08, 0x56033046, 0xfc7b0000,
};
// Bits [shift, shift + 53) after the point, as a number of that weight. (Manual: V_TRIG_PREOP_F64; the
// meaning of the shift is as in LLVM's constant folding of amdgcn.trig.preop.)
const Step* digits_of_two_over_pi(Wave* wave, const Step* step) {
    return each_lane<2>(wave, step, [&](int lane, uint32_t* result) {
        const uint32_t exponent = source_dword(wave, step, 0, lane, 1) >> 20 & 0x7ff;
        uint32_t shift = (source_dword(wave, step, 1, lane) & 31) * 53;
        if (exponent > 1077) shift += exponent - 1077;
        uint64_t digits = 0;
        for (uint32_t i = 0; i < 53; ++i) {
            const uint32_t bit = shift + i;
            digits = digits << 1 | (bit < 1201 ? two_over_pi[bit / 32] >> (31 - bit % 32) & 1 : 0);
        }
        int scale = -53 - static_cast<int>(shift);
        if (exponent >= 1968) scale += 128;
        const double value = __builtin_ldexp(static_cast<double>(digits), scale);
        memcpy(result, &value, sizeof value);
    });
}

// Byte src1[1:0] of the destination becomes the f32 as an integer in [0, 255].
const Step* accumulate_u8(Wave* wave, const Step* step) {
    return three_dwords(wave, step, [](uint32_t a, uint32_t b, uint32_t old) {
        float value;
        memcpy(&value, &a, 4);
        const uint32_t byte = value >= 255 ? 255
                              : value > 0  ? static_cast<uint32_t>(value)
                                           : 0,
                       shift = (b & 3) * 8;
        return (old & ~(0xffu << shift)) | byte << shift;
    });
}

const Meaning rows[] = {
    {Opcode::v_qsad_pk_u16_u8, four_windows_u16<false, false>},
    {Opcode::v_mqsad_pk_u16_u8, four_windows_u16<true, false>},
    {Opcode::v_mqsad_u32_u8, four_windows_u32<false>},
    {Opcode::v_trig_preop_f64, digits_of_two_over_pi},
    {Opcode::v_cvt_pkaccum_u8_f32, accumulate_u8},
};

// ---- Clamp.

int64_t signed24(uint32_t a) { return static_cast<int32_t>(a << 8) >> 8; }
int64_t signed32(uint32_t a) { return static_cast<int32_t>(a); }
int64_t signed16(uint32_t a) { return static_cast<int16_t>(a); }
int64_t distance(int64_t a, int64_t b) { return a < b ? b - a : a - b; }

template <int bits, bool is_signed>
int64_t dot(uint32_t a, uint32_t b) {
    int64_t sum = 0;
    for (int shift = 0; shift < 32; shift += bits) {
        const int left = 32 - bits - shift, right = 32 - bits;
        sum += is_signed ? int64_t{static_cast<int32_t>(a << left) >> right} *
                               (static_cast<int32_t>(b << left) >> right)
                         : static_cast<int64_t>(uint64_t{a << left >> right} * (b << left >> right));
    }
    return sum;
}

template <bool subtract, bool swapped, bool with_carry>
const Step* saturating_carry(Wave* wave, const Step* step) {
    uint64_t carries = 0;
    const uint64_t carry_in = with_carry ? read_scalar64(wave, step->source[2]) : 0;
    each_lane<1>(wave, step, [&](int lane, uint32_t* result) {
        const int64_t a = source_dword(wave, step, swapped ? 1 : 0, lane),
                      b = source_dword(wave, step, swapped ? 0 : 1, lane),
                      carry = static_cast<int64_t>(carry_in >> lane & 1);
        const int64_t value = subtract ? a - b - carry : a + b + carry;
        *result = saturated_u32(value);
        if (value < 0 || value > 0xffffffff) carries |= uint64_t{1} << lane;
    });
    write_scalar64(wave, step->extra[0], carries);
    return step + 1;
}

template <bool is_signed>
const Step* saturating_mad64(Wave* wave, const Step* step) {
    uint64_t carries = 0;
    each_lane<2>(wave, step, [&](int lane, uint32_t* result) {
        const uint32_t a = source_dword(wave, step, 0, lane), b = source_dword(wave, step, 1, lane);
        const uint64_t c = source_qword(wave, step, 2, lane);
        typedef __int128 Sum;
        const Sum sum = is_signed ? Sum{signed32(a)} * signed32(b) + static_cast<int64_t>(c)
                                  : static_cast<Sum>(uint64_t{a} * b) + c;
        const Sum lowest = is_signed ? Sum{INT64_MIN} : Sum{0},
                  highest = is_signed ? Sum{INT64_MAX} : static_cast<Sum>(UINT64_MAX);
        // The mask is the same as without clamp: bit 64 of the sum.
        if (is_signed ? sum < 0 : sum > highest) carries |= uint64_t{1} << lane;
        const uint64_t value = static_cast<uint64_t>(sum < lowest ? lowest : sum > highest ? highest : sum);
        result[0] = static_cast<uint32_t>(value);
        result[1] = static_cast<uint32_t>(value >> 32);
    });
    write_scalar64(wave, step->extra[0], carries);
    return step + 1;
}

#define SATURATE(opcode, limit, ...)                                                          \
    {Opcode::opcode, [](Wave* wave, const Step* step) {                                       \
         return three_dwords(wave, step,                                                      \
                             []([[maybe_unused]] uint32_t a, [[maybe_unused]] uint32_t b,     \
                                [[maybe_unused]] uint32_t c) { return limit(__VA_ARGS__); }); \
     }},
#define SATURATE_HALVES(opcode, limit, half)                                      \
    {Opcode::opcode, [](Wave* wave, const Step* step) {                           \
         return three_dwords(wave, step, [](uint32_t a, uint32_t b, uint32_t c) { \
             return limit(half(a) * half(b) + half(c)) |                          \
                    limit(half(a >> 16) * half(b >> 16) + half(c >> 16)) << 16;   \
         });                                                                      \
     }},
int64_t unsigned16(uint32_t a) { return a & 0xffff; }
int64_t unsigned24(uint32_t a) { return a & 0xffffff; }

// clang-format off: one row an instruction
const Meaning saturating_rows[] = {
    {Opcode::v_add_co_u32, saturating_carry<false, false, false>},
    {Opcode::v_sub_co_u32, saturating_carry<true, false, false>},
    {Opcode::v_subrev_co_u32, saturating_carry<true, true, false>},
    {Opcode::v_addc_co_u32, saturating_carry<false, false, true>},
    {Opcode::v_subb_co_u32, saturating_carry<true, false, true>},
    {Opcode::v_subbrev_co_u32, saturating_carry<true, true, true>},
    {Opcode::v_mad_u64_u32, saturating_mad64<false>},
    {Opcode::v_mad_i64_i32, saturating_mad64<true>},
    {Opcode::v_qsad_pk_u16_u8, four_windows_u16<false, true>},
    {Opcode::v_mqsad_pk_u16_u8, four_windows_u16<true, true>},
    {Opcode::v_mqsad_u32_u8, four_windows_u32<true>},
    SATURATE(v_mul_i32_i24, saturated_i32, signed24(a) * signed24(b))
    SATURATE(v_mul_u32_u24, saturated_u32, unsigned24(a) * unsigned24(b))
    SATURATE(v_mad_i32_i24, saturated_i32, signed24(a) * signed24(b) + signed32(c))
    SATURATE(v_mad_u32_u24, saturated_u32, unsigned24(a) * unsigned24(b) + c)
    SATURATE(v_mad_i32_i16, saturated_i32, signed16(a) * signed16(b) + signed32(c))
    SATURATE(v_mad_u32_u16, saturated_u32, unsigned16(a) * unsigned16(b) + c)
    SATURATE(v_mad_legacy_i16, saturated_i16, signed16(a) * signed16(b) + signed16(c))
    SATURATE(v_mad_legacy_u16, saturated_u16, unsigned16(a) * unsigned16(b) + unsigned16(c))
    SATURATE(v_sad_u8, saturated_u32, int64_t{byte_differences(a, b, false)} + c)
    SATURATE(v_sad_hi_u8, saturated_u32, (int64_t{byte_differences(a, b, false)} << 16) + c)
    SATURATE(v_msad_u8, saturated_u32, int64_t{byte_differences(a, b, true)} + c)
    SATURATE(v_sad_u16, saturated_u32, distance(unsigned16(a), unsigned16(b)) + distance(a >> 16, b >> 16) + c)
    SATURATE(v_sad_u32, saturated_u32, distance(a, b) + c)
    SATURATE(v_dot2_i32_i16, saturated_i32, dot<16, true>(a, b) + signed32(c))
    SATURATE(v_dot2c_i32_i16, saturated_i32, dot<16, true>(a, b) + signed32(c))
    SATURATE(v_dot2_u32_u16, saturated_u32, dot<16, false>(a, b) + c)
    SATURATE(v_dot4_i32_i8, saturated_i32, dot<8, true>(a, b) + signed32(c))
    SATURATE(v_dot4c_i32_i8, saturated_i32, dot<8, true>(a, b) + signed32(c))
    SATURATE(v_dot4_u32_u8, saturated_u32, dot<8, false>(a, b) + c)
    SATURATE(v_dot8_i32_i4, saturated_i32, dot<4, true>(a, b) + signed32(c))
    SATURATE(v_dot8c_i32_i4, saturated_i32, dot<4, true>(a, b) + signed32(c))
    SATURATE(v_dot8_u32_u4, saturated_u32, dot<4, false>(a, b) + c)
    SATURATE_HALVES(v_pk_mad_i16, saturated_i16, signed16)
    SATURATE_HALVES(v_pk_mad_u16, saturated_u16, unsigned16)
};
// clang-format on

}  // namespace

MeaningList lanewise_meanings() { return list_of(rows); }
MeaningList lanewise_saturating_meanings() { return list_of(saturating_rows); }

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
