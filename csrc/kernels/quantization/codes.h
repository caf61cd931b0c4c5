// kernels/quantization/codes.h: from eight floats and their scale to codes in memory.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/float8.h"
#include "../../tiles/row_chunk.h"
#include "arguments.h"

namespace hipkittens::quantize {

using kittens::clamped;
using kittens::eight;

KITTENS_DEVICE float largest_magnitude(eight values) {
    float result = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) result = kittens::larger_or_nan(result, kittens::absolute_value(values[i]));
    return result;
}

// The scale, for memory, and what values are multiplied by.
struct Scale {
    float value, inverse;
    uint32_t byte;  // of e8m0
};
KITTENS_DEVICE Scale scale_of(const QuantizeArguments& arguments, float magnitude) {
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

// Half-way cases: 0.25, 1.25, 2.5 and 5 lie between an even code below and an odd one above.
KITTENS_DEVICE uint32_t e2m1(float value, bool ties_away) {
    const float magnitude = kittens::absolute_value(value);
    const auto reaches = [&](float middle, bool even_is_above) {
        return magnitude > middle || (magnitude == middle && (even_is_above || ties_away)) ? 1u : 0u;
    };
    const uint32_t code = reaches(0.25f, false) + reaches(0.75f, true) + reaches(1.25f, false) +
                          reaches(1.75f, true) + reaches(2.5f, false) + reaches(3.5f, true) +
                          reaches(5.0f, false);
    return code | (__builtin_bit_cast(uint32_t, value) >> 31) << 3;
}

KITTENS_DEVICE uint32_t int8(float value, bool toward_zero) {
    const float whole = toward_zero ? __builtin_truncf(value) : __builtin_rintf(value);
    // A comparison with NaN is false, and the conversion then gives 0.
    return static_cast<uint32_t>(static_cast<int32_t>(clamped(whole, 127.0f))) & 0xff;
}

// The codes of eight values: 8 bytes, or the first 4 of e2m1.
KITTENS_DEVICE kittens::vec<uint32_t, 2> codes_of(const QuantizeArguments& arguments, eight values,
                                                  const Scale& scale) {
    values *= scale.inverse;
    kittens::vec<uint32_t, 2> words = 0u;
    if (arguments.code == Code::e2m1) {
#pragma unroll
        for (int i = 0; i < 8; ++i) words[0] |= e2m1(values[i], arguments.other_rounding) << 4 * i;
    } else if (arguments.code == Code::int8) {
#pragma unroll
        for (int i = 0; i < 8; ++i) words[i / 4] |= int8(values[i], arguments.other_rounding) << 8 * (i % 4);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = clamped(values[i], arguments.largest);
        const bool fp8 = arguments.code == Code::fp8;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const kittens::vec<float, 4> four = i ? values.hi : values.lo;
            words[i] = fp8 ? kittens::to_fp8(four) : kittens::to_bf8(four);
        }
    }
    return words;
}

// The codes of the eight columns from `first` on of a row, of which `count` are there; whole: all of them, and on 4 bytes.
KITTENS_DEVICE void store_codes(const QuantizeArguments& arguments, kittens::vec<uint32_t, 2> words,
                                uint32_t row, uint32_t first, uint32_t count, bool whole) {
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

// Where the scale of row y and group x lies among shuffled ones: blocks of 32 rows and 8 groups of 256 bytes, in which bit 0 is the
// row's bit 4, bit 1 the group's bit 2, bits 2-5 the row's bits 0-3 and bits 6-7 the group's bits 0-1.
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
