// kernels/quantization/codes.h: from eight floats and their scale to quantized values (codes) in memory.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/float8.h"
#include "../../tiles/row_chunk.h"
#include "arguments.h"

namespace hipkittens::quantize {

using kittens::eight;

KITTENS_DEVICE float largest_magnitude(eight values) {
    float result = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) result = kittens::larger_or_nan(result, kittens::absolute_value(values[i]));
    return result;
}

// For elements as in memory: without the sign, the bits of 16-bit floats are ordered like the numbers, with NaN above all.
template <class T>
KITTENS_DEVICE float largest_raw_magnitude(kittens::raw_eight<T> values) {
    if constexpr (!kittens::is_16bit<T>) {
        return largest_magnitude(kittens::widened(values));
    } else {
        const auto bits = __builtin_bit_cast(kittens::vec<uint16_t, 8>, values) & uint16_t{0x7fff};
        const kittens::vec<uint16_t, 4> four = __builtin_elementwise_max(bits.lo, bits.hi);
        const kittens::vec<uint16_t, 2> two = __builtin_elementwise_max(four.lo, four.hi);
        const uint16_t largest = two[0] > two[1] ? two[0] : two[1];
        return static_cast<float>(__builtin_bit_cast(T, largest));
    }
}

// The scale as stored, and the factor for values. finite: no value with this scale becomes NaN when multiplied by `inverse`.
struct Scale {
    float value, inverse;
    uint32_t byte;  // of e8m0
    bool finite = false;
};
KITTENS_DEVICE Scale scale_of_magnitude(const QuantizeArguments& arguments, float magnitude) {
    if (arguments.powers) {
        const uint32_t bits = __builtin_bit_cast(uint32_t, magnitude), mantissa = bits & 0x7fffff;
        int byte = static_cast<int>(bits >> 23) - arguments.power_exponent +
                   (mantissa >= arguments.power_threshold ? 1 : 0);
        byte = byte < 0 ? 0 : byte;
        if (bits >= 0x7f800000) byte = 255;  // NaN: no scale reaches infinity
        return {0, kittens::times_power_of_2(1.0f, 127 - byte), static_cast<uint32_t>(byte)};
    }
    if (magnitude != magnitude) return {magnitude, magnitude, 0};
    const float bounded = kittens::smaller(kittens::larger(magnitude, arguments.floor), arguments.bound);
    // 1 / 0 times 0 would be NaN.
    if (bounded == 0) return {arguments.zero_scale, 0, 0};
    const float value = bounded / arguments.largest;
    return {value, 1 / value, 0};
}
KITTENS_DEVICE Scale scale_of(const QuantizeArguments& arguments, float magnitude) {
    Scale scale = scale_of_magnitude(arguments, magnitude);
    // Neither is infinite or NaN, since otherwise their product would be.
    scale.finite = magnitude * scale.inverse < __builtin_inff();
    return scale;
}

// Codes 0, 1, 2, ... are steps of 1/2 up to 2, of 1 up to 4 and of 2 up to 6, and their parity is that of the number of steps. 2^22
// times the power of two below a magnitude has the step as its last place, so the sum of the two has the number of steps in its last
// bits; with each power of two, that number falls 2 further below the code.
KITTENS_DEVICE uint32_t e2m1_to_even(float magnitude) {
    const float bounded = kittens::smaller(magnitude, 6.0f);
    constexpr uint32_t exponent_bits = 0x7f800000, one = 0x3f800000;
    const uint32_t power =
        __builtin_elementwise_max(__builtin_bit_cast(uint32_t, bounded) & exponent_bits, one);
    const float sum = __builtin_fmaf(__builtin_bit_cast(float, power), 0x1p22f, bounded);
    return __builtin_bit_cast(uint32_t, sum) - power - (22u << 23) + ((power - one) >> 22);
}
// The line of each piece is below the other two where its step applies, so the least of the rounded values is the code.
KITTENS_DEVICE uint32_t e2m1_away(float magnitude) {
    const float least = kittens::smaller(
        __builtin_roundf(2 * magnitude),
        kittens::smaller(__builtin_roundf(magnitude) + 2, __builtin_roundf(0.5f * magnitude) + 4));
    return static_cast<uint32_t>(kittens::smaller(least, 7.0f));
}
template <bool ties_away>
KITTENS_DEVICE uint32_t e2m1_word(eight values) {
    uint32_t word = 0;
    if constexpr (kittens::target.scaled_conversions && !ties_away) {
        word = kittens::pack_fp4<0>(values[0], values[1], word);
        word = kittens::pack_fp4<1>(values[2], values[3], word);
        word = kittens::pack_fp4<2>(values[4], values[5], word);
        return kittens::pack_fp4<3>(values[6], values[7], word);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float value =
            values[i];  // a bit cast of a vector's element would take the bits of the first one
        const float magnitude = kittens::absolute_value(value);
        const uint32_t code = ties_away ? e2m1_away(magnitude) : e2m1_to_even(magnitude),
                       sign = __builtin_bit_cast(uint32_t, value) >> 31;
        word |= code << 4 * i | sign << (4 * i + 3);
    }
    return word;
}

// 6-bit floats, ties to even: `fraction` bits after the leading one for numbers from 2^least on, below which steps are equal. For values
// not above the largest one.
template <int fraction, int least>
KITTENS_DEVICE uint32_t float6(float value) {
    const float magnitude = kittens::absolute_value(value);
    const uint32_t bits = __builtin_bit_cast(uint32_t, magnitude);
    constexpr int dropped = 23 - fraction;
    const uint32_t rounded = (bits + (bits >> dropped & 1) + ((1u << (dropped - 1)) - 1)) >> dropped;
    constexpr float one = 1 << (fraction + (least < 0 ? -least : 0)),
                    smallest = 1.0f / (1 << (least < 0 ? -least : 0));
    const uint32_t code = magnitude < smallest ? static_cast<uint32_t>(__builtin_rintf(magnitude * one))
                                               : rounded - ((126 + least) << fraction);
    return code | (__builtin_bit_cast(uint32_t, value) >> 31) << 5;
}

KITTENS_DEVICE bool is_6_bits(Code code) { return code == Code::e2m3 || code == Code::e3m2; }

// Not for NaN.
KITTENS_DEVICE uint32_t int8(float value, bool toward_zero) {
    const float whole = toward_zero ? __builtin_truncf(value) : __builtin_rintf(value);
    return static_cast<uint32_t>(static_cast<int32_t>(kittens::median(whole, -127.0f, 127.0f))) & 0xff;
}

// The codes of eight values: 8 bytes, or the first 4 for e2m1 and the first 6 for 6-bit values. NaN becomes NaN if the format has one,
// otherwise zero.
KITTENS_DEVICE kittens::vec<uint32_t, 2> codes_of(const QuantizeArguments& arguments, eight values,
                                                  const Scale& scale) {
    values *= scale.inverse;
    const bool has_nan = arguments.code == Code::fp8 || arguments.code == Code::bf8;
    // For the whole wave: handling NaN costs the lanes without one, too. Fences keep compilers from always executing it to save a branch.
    const bool finite = !kittens::any_lane(!scale.finite);
    if (__builtin_expect(!finite && !has_nan, false)) {
        kittens::compiler_fence();
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (values[i] != values[i]) values[i] = __builtin_copysignf(0.0f, values[i]);
    }
    kittens::vec<uint32_t, 2> words = 0u;
    if (arguments.code == Code::e2m1) {
        words[0] = arguments.other_rounding ? e2m1_word<true>(values) : e2m1_word<false>(values);
    } else if (is_6_bits(arguments.code)) {
        uint64_t all = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float value = kittens::median(values[i], -arguments.largest, arguments.largest);
            const uint64_t code = arguments.code == Code::e2m3 ? float6<3, 0>(value) : float6<2, -2>(value);
            all |= code << 6 * i;
        }
        words = {static_cast<uint32_t>(all), static_cast<uint32_t>(all >> 32)};
    } else if (arguments.code == Code::int8) {
#pragma unroll
        for (int i = 0; i < 8; ++i) words[i / 4] |= int8(values[i], arguments.other_rounding) << 8 * (i % 4);
    } else {
        eight inside;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            inside[i] = kittens::median(values[i], -arguments.largest, arguments.largest);
        if (__builtin_expect(!finite, false)) {
            kittens::compiler_fence();
#pragma unroll
            for (int i = 0; i < 8; ++i) inside[i] = values[i] == values[i] ? inside[i] : values[i];
        }
        if (arguments.code == Code::fp8) {
            words = {kittens::to_fp8(inside.lo), kittens::to_fp8(inside.hi)};
        } else {
            kittens::compiler_fence();
            words = {kittens::to_bf8(inside.lo), kittens::to_bf8(inside.hi)};
        }
    }
    return words;
}

// Stores the codes of eight columns of a row from `first` on, of which `count` exist; whole: all of them, and 4-byte aligned.
KITTENS_DEVICE void store_codes(const QuantizeArguments& arguments, kittens::vec<uint32_t, 2> words,
                                uint32_t row, uint32_t first, uint32_t count, bool whole) {
    if (is_6_bits(arguments.code)) {  // in whole groups of 32
        auto* halves = (__attribute__((address_space(1)))
                        uint16_t*)((__attribute__((address_space(1))) char*)arguments.codes +
                                   (row * static_cast<int64_t>(arguments.columns) + first) / 4 * 3);
#pragma unroll
        for (int i = 0; i < 3; ++i) halves[i] = static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2));
        return;
    }
    const bool half = arguments.code == Code::e2m1;
    const int64_t row_bytes = half ? arguments.columns / 2 : arguments.columns;
    auto* bytes = (__attribute__((address_space(1))) char*)arguments.codes + row * row_bytes +
                  (half ? first / 2 : first);
    typedef kittens::vec<uint32_t, 2> two __attribute__((aligned(4)));
    if (whole && half)
        *(__attribute__((address_space(1))) uint32_t*)bytes = words[0];
    else if (whole)
        *(__attribute__((address_space(1))) two*)bytes = words;
    else {
        const uint32_t there = count < 8 ? count : 8, length = half ? there / 2 : there;
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i)
            if (i < length) bytes[i] = static_cast<char>(words[i / 4] >> 8 * (i % 4));
    }
}

// The group of a column, and whether it is the first of its group. A group has a power of two of columns,
// which the compiler does not know: it would emit a division.
KITTENS_DEVICE uint32_t group_of(const QuantizeArguments& arguments, uint32_t column) {
    return column >> __builtin_ctz(arguments.group_lanes * columns_of_thread);
}
KITTENS_DEVICE bool begins_group(const QuantizeArguments& arguments, uint32_t column) {
    return (column & (arguments.group_lanes * columns_of_thread - 1)) == 0;
}

// The location of the scale of row y and group x in the shuffled layout: blocks of 32 rows and 8 groups of 256 bytes, in which bit
// 0 is the row's bit 4, bit 1 the group's bit 2, bits 2-5 the row's bits 0-3 and bits 6-7 the group's bits 0-1.
KITTENS_DEVICE int64_t shuffled_scale(uint32_t row, uint32_t group, uint32_t padded_groups) {
    return static_cast<int64_t>(row / 32) * 32 * padded_groups + group / 8 * 256 + group % 4 * 64 +
           row % 16 * 4 + group % 8 / 4 * 2 + row % 32 / 16;
}

KITTENS_DEVICE void store_scale(const QuantizeArguments& arguments, const Scale& scale, uint32_t row,
                                uint32_t group) {
    const int64_t offset =
        arguments.layout == ScaleLayout::shuffled  ? shuffled_scale(row, group, arguments.padded_groups)
        : arguments.layout == ScaleLayout::columns ? static_cast<int64_t>(group) * arguments.rows.all + row
                                                   : static_cast<int64_t>(row) * arguments.groups + group;
    if (arguments.powers)
        static_cast<uint8_t*>(arguments.scales)[offset] = static_cast<uint8_t>(scale.byte);
    else
        static_cast<float*>(arguments.scales)[offset] = scale.value;
}

}  // namespace hipkittens::quantize
