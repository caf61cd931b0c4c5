// simulator/execute/matrix_widened.h: operands of 8-, 6- and 4-bit floats converted to bf16, for the host's own bf16
// products.
// SPDX-License-Identifier: MIT
//
// All their values, scaled by powers of two within bf16's exponent range, are bf16 values: nothing is rounded
// here. A widened operand is stored like the registers of bf16 operands: rows of 64 dwords, one per lane, with a
// pair of k in each.
#pragma once

#include <cstdint>
#include <cstring>

#include "simulator/execute/matrix_scaled.h"
#include "simulator/machine/wave.h"

#if defined(__AVX512BW__)

#include <immintrin.h>

namespace hipkittens::simulator::widened {

#define HIPKITTENS_WIDENED static inline __attribute__((always_inline))

// The first five are numbered as in CBSZ and BLGP; FNUZ is gfx942's variant of 8-bit floats.
enum class Format : uint8_t { fp8, bf8, fp6, bf6, fp4, fnuz_fp8, fnuz_bf8 };

HIPKITTENS_WIDENED constexpr int bits_of(Format format) {
    switch (format) {
        case Format::fp6:
        case Format::bf6:
            return 6;
        case Format::fp4:
            return 4;
        default:
            return 8;
    }
}

// bf16 values by bit pattern: 8-bit formats without the sign, 4-bit ones twice.
struct alignas(64) Table {
    uint16_t of[128];
};

static constexpr uint16_t bf16_of(int significand, int exponent) {  // significand * 2^exponent
    if (significand == 0) return 0;
    while (significand < 128) significand *= 2, --exponent;
    return static_cast<uint16_t>((exponent + 7 + 127) << 7 | (significand & 127));
}

static constexpr Table make_table(Format format) {
    const int bits = bits_of(format), entries = bits == 8 ? 128 : bits == 6 ? 64 : 32;
    const int fraction_bits = format == Format::fp4                            ? 1
                              : format == Format::bf8 || format == Format::bf6 ? 2
                              : format == Format::fnuz_bf8                     ? 2
                                                                               : 3;
    const int bias = format == Format::fp8        ? 7
                     : format == Format::bf8      ? 15
                     : format == Format::fnuz_fp8 ? 8
                     : format == Format::fnuz_bf8 ? 16
                     : format == Format::bf6      ? 3
                                                  : 1;
    const int sign_bit = bits == 8 ? 7 : bits - 1;
    Table table = {};
    for (int pattern = 0; pattern < entries; ++pattern) {
        const int magnitude = pattern & ((1 << sign_bit) - 1);
        const int exponent = magnitude >> fraction_bits, fraction = magnitude & ((1 << fraction_bits) - 1);
        uint16_t value = bf16_of(exponent ? fraction | 1 << fraction_bits : fraction,
                                 (exponent ? exponent : 1) - bias - fraction_bits);
        if (format == Format::fp8 && magnitude == 0x7f) value = 0x7fc0;
        if (format == Format::bf8 && magnitude >= 0x7c) value = fraction ? 0x7fc0 : 0x7f80;
        const bool negative = bits < 8 && (pattern >> sign_bit & 1);
        table.of[pattern] = static_cast<uint16_t>(value | (negative ? 0x8000 : 0));
    }
    return table;
}
template <Format format>
inline constexpr Table table = make_table(format);

// Two bytes of each dword as words.
HIPKITTENS_WIDENED __m512i two_bytes(__m512i dwords, int first, int second) {
    const int chosen = static_cast<int>(0x80008000u) + first + (second << 16);
    const __m512i places =
        _mm512_add_epi32(_mm512_set4_epi32(0x000c000c, 0x00080008, 0x00040004, 0), _mm512_set1_epi32(chosen));
    return _mm512_shuffle_epi8(dwords, places);
}

// Bits of pair `pair` of every lane: each word of the result has its element's pattern from bit 0 on,
// possibly with bits of other elements above.
template <Format format>
HIPKITTENS_WIDENED __m512i patterns(const uint8_t* from, int pair) {
    constexpr int bits = bits_of(format);
    if constexpr (bits == 8) {
        return two_bytes(_mm512_load_si512(from + pair / 2 * 256), pair % 2 * 2, pair % 2 * 2 + 1);
    } else if constexpr (bits == 4) {
        const __m512i bytes = two_bytes(_mm512_load_si512(from + pair / 4 * 256), pair % 4, pair % 4);
        return _mm512_srlv_epi16(bytes, _mm512_set1_epi32(4 << 16));
    } else {
        const int dword = 12 * pair / 32, offset = 12 * pair % 32;
        __m512i twelve =
            _mm512_srli_epi32(_mm512_load_si512(from + dword * 256), static_cast<unsigned>(offset));
        if (offset > 20) {
            const __m512i next = _mm512_load_si512(from + (dword + 1) * 256);
            twelve = _mm512_or_si512(twelve, _mm512_slli_epi32(next, static_cast<unsigned>(32 - offset)));
        }
        return _mm512_mask_mov_epi16(twelve, 0xaaaaaaaau, _mm512_slli_epi32(twelve, 10));
    }
}

template <Format format>
HIPKITTENS_WIDENED __m512i values(__m512i patterns) {
    const auto entries = [](int quarter) { return _mm512_load_si512(table<format>.of + 32 * quarter); };
    constexpr int bits = bits_of(format);
    if constexpr (bits == 4) return _mm512_maskz_permutexvar_epi16(~__mmask32{0}, patterns, entries(0));
    if constexpr (bits == 6) return _mm512_permutex2var_epi16(entries(0), patterns, entries(1));
    const __m512i small = _mm512_permutex2var_epi16(entries(0), patterns, entries(1));
    const __m512i large = _mm512_permutex2var_epi16(entries(2), patterns, entries(3));
    const __mmask32 is_large = _mm512_test_epi16_mask(patterns, _mm512_set1_epi16(0x40));
    __m512i value = _mm512_mask_mov_epi16(small, is_large, large);
    const __m512i sign = _mm512_set1_epi16(0x80);
    value =
        _mm512_or_si512(value, _mm512_maskz_slli_epi16(~__mmask32{0}, _mm512_and_si512(patterns, sign), 8));
    if constexpr (format == Format::fnuz_fp8 || format == Format::fnuz_bf8)
        value =
            _mm512_mask_mov_epi16(value, _mm512_cmpeq_epi16_mask(patterns, sign), _mm512_set1_epi16(0x7fc0));
    return value;
}

// `powers`: the amount to add to each element's exponent, as bf16 bits. Zeros, infinities and NaN are
// unchanged.
HIPKITTENS_WIDENED __m512i scaled(__m512i value, __m512i powers) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    const __mmask32 finite = _mm512_cmpneq_epi16_mask(_mm512_and_si512(value, exponent), exponent);
    return _mm512_mask_add_epi16(value, _mm512_mask_test_epi16_mask(finite, value, _mm512_set1_epi16(0x7fff)),
                                 value, powers);
}

// `pairs` pairs of k for each of 64 lanes.
template <Format format, int pairs>
HIPKITTENS_WIDENED void widen(const uint8_t* from, uint8_t* to) {
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter) {
#pragma GCC unroll 16
        for (int pair = 0; pair < pairs; ++pair)
            _mm512_store_si512(to + pair * 256 + quarter * 64,
                               values<format>(patterns<format>(from + quarter * 64, pair)));
    }
}

// An operand of v_mfma_f32_*_f8f6f4: 32 elements per lane. In 8-bit formats these are two runs of 16, half of
// the depth apart; they are moved to where narrower formats have them, at 32 consecutive k. powers: for each
// quarter of the lanes of the result; null: no scales.
template <Format format, int size>
HIPKITTENS_WIDENED void widen_block(const uint8_t* from, const __m512i* powers, uint8_t* to) {
    constexpr int quarters = size / 16;  // of a lane group
    for (int quarter = 0; quarter < 4; ++quarter) {
        const int group = quarter / quarters, rows = quarter % quarters;
#pragma GCC unroll 16
        for (int pair = 0; pair < 16; ++pair) {
            int to_pair = pair, to_quarter = quarter;
            if (bits_of(format) == 8) {
                // In units of 16 k: the group's run in this half of the depth.
                const int run = group + pair / 8 * (64 / size);
                to_pair = pair % 8 + run % 2 * 8;
                to_quarter = run / 2 * quarters + rows;
            }
            __m512i value = values<format>(patterns<format>(from + quarter * 64, pair));
            if (powers) value = scaled(value, powers[to_quarter]);
            _mm512_store_si512(to + to_pair * 256 + to_quarter * 64, value);
        }
    }
}

template <int size>
HIPKITTENS_WIDENED void widen_block(uint32_t format, const uint8_t* from, const __m512i* powers,
                                    uint8_t* to) {
    switch (static_cast<Format>(format)) {
        case Format::fp8:
            return widen_block<Format::fp8, size>(from, powers, to);
        case Format::bf8:
            return widen_block<Format::bf8, size>(from, powers, to);
        case Format::fp6:
            return widen_block<Format::fp6, size>(from, powers, to);
        case Format::bf6:
            return widen_block<Format::bf6, size>(from, powers, to);
        default:
            return widen_block<Format::fp4, size>(from, powers, to);
    }
}

// Whether the 32 elements of an operand that lane `lane` holds the scale of are all +0.
template <int size>
HIPKITTENS_WIDENED bool is_zero_block(uint32_t format, const uint8_t* from, int lane) {
    const auto are_zeros = [from](int of_lane, int first, int past) {
        uint32_t any = 0;
        for (int dword = first; dword < past; ++dword) {
            uint32_t word;
            memcpy(&word, from + dword * 256 + of_lane * 4, 4);
            any |= word;
        }
        return !any;
    };
    const int bits = bits_of(static_cast<Format>(format));  // dwords of a lane
    if (bits != 8) return are_zeros(lane, 0, bits);
    constexpr int groups = 64 / size;
    for (int run = lane / size * 2, past = run + 2; run < past; ++run) {
        const int half = run / groups;
        if (!are_zeros(run % groups * size + lane % size, 4 * half, 4 * half + 4)) return false;
    }
    return true;
}

// The powers of two of scale bytes, one per lane, as bf16 bits to add to both elements of a pair. False: some
// scale is NaN, or so far from one that a scaled element would leave bf16's normal range. Zeros cannot leave
// it: past the end of memory, buffer loads return zeros for elements and for scales.
template <int size>
HIPKITTENS_WIDENED bool powers_of(uint32_t format, const uint8_t* from, const uint8_t* scales,
                                  uint32_t quarter_bytes, uint32_t byte, __m512i* powers) {
    for (int quarter = 0; quarter < 4; ++quarter) {
        const __m512i rows = _mm512_load_si512(scales + quarter * quarter_bytes);
        const __m512i scale = _mm512_and_si512(
            _mm512_srl_epi32(rows, _mm_cvtsi32_si128(static_cast<int>(8 * byte))), _mm512_set1_epi32(0xff));
        __m512i power = _mm512_sub_epi32(scale, _mm512_set1_epi32(127));
        const __mmask16 far = _mm512_cmpgt_epi32_mask(_mm512_abs_epi32(power), _mm512_set1_epi32(89));
        if (__builtin_expect(far, 0)) {
            if (_mm512_cmpeq_epi32_mask(scale, _mm512_set1_epi32(255))) return false;
            for (uint32_t left = far; left; left &= left - 1)
                if (!is_zero_block<size>(format, from, quarter * 16 + __builtin_ctz(left))) return false;
            power = _mm512_mask_mov_epi32(power, far, _mm512_setzero_si512());
        }
        const __m512i bits = _mm512_and_si512(_mm512_slli_epi32(power, 7), _mm512_set1_epi32(0xffff));
        powers[quarter] = _mm512_or_si512(bits, _mm512_slli_epi32(bits, 16));
    }
    return true;
}

// Both operands of a step made by bind_scaled_matrix, with their scales: 16 rows of pairs each. False as in
// powers_of.
template <int size>
HIPKITTENS_WIDENED bool widen_operands(Wave* wave, const Step* step, const ScaledControl& control, uint8_t* a,
                                       uint8_t* b) {
    __m512i powers[2][4];
    if (control.is_scaled &&
        !(powers_of<size>(control.a_format, at(wave, step->source[0]), at(wave, step->extra[0]),
                          step->stride[0], control.a_byte, powers[0]) &&
          powers_of<size>(control.b_format, at(wave, step->source[1]), at(wave, step->extra[1]),
                          step->stride[1], control.b_byte, powers[1])))
        return false;
    widen_block<size>(control.a_format, at(wave, step->source[0]), control.is_scaled ? powers[0] : nullptr,
                      a);
    widen_block<size>(control.b_format, at(wave, step->source[1]), control.is_scaled ? powers[1] : nullptr,
                      b);
    return true;
}

#undef HIPKITTENS_WIDENED

}  // namespace hipkittens::simulator::widened

#endif
