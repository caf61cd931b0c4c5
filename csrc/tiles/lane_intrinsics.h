// tiles/lane_intrinsics.h: exchanges between lanes, and single-instruction arithmetic.
// SPDX-License-Identifier: MIT
#pragma once
#include "wave_intrinsics.h"

namespace kittens {

// Lanes.

// Applies a 32-bit function to a value of up to 64 bits.
template <class T, class Function>
KITTENS_DEVICE T as_32_bits(T value, const Function& function) {
    if constexpr (sizeof(T) == 8) {
        const auto halves = __builtin_bit_cast(vec<uint32_t, 2>, value);
        return __builtin_bit_cast(T, vec<uint32_t, 2>{static_cast<uint32_t>(function(halves[0])),
                                                      static_cast<uint32_t>(function(halves[1]))});
    } else if constexpr (sizeof(T) == 2)
        return __builtin_bit_cast(T, static_cast<uint16_t>(function(__builtin_bit_cast(uint16_t, value))));
    else
        return __builtin_bit_cast(T, static_cast<uint32_t>(function(__builtin_bit_cast(uint32_t, value))));
}
// The value of lane `lane`, which may differ between lanes.
template <class T>
KITTENS_DEVICE T read_lane(T value, int lane) {
    return as_32_bits(value, [=](int bits) { return __builtin_amdgcn_ds_bpermute(lane * 4, bits); });
}
// The value of lane l ^ 32 (exchange_32) or l ^ 16 (exchange_16).
template <class T>
KITTENS_DEVICE T exchange_32(T value) {
    if constexpr (target.lane_swaps)
        return as_32_bits(value, [](uint32_t bits) {
            // Two copies swap halves: one then holds the lower half twice, the other the upper half.
            const auto swapped = __builtin_amdgcn_permlane32_swap(bits, bits, false, false);
            return lane_id() < 32 ? swapped[1] : swapped[0];
        });
    else
        return read_lane(value, lane_id() ^ 32);
}
template <class T>
KITTENS_DEVICE T exchange_16(T value) {
    // ds_swizzle within groups of 32 lanes: and 0x1f, xor 0x10 (LLVM AMDGPUUsage, swizzle(BITMASK_PERM)).
    return as_32_bits(value, [](int bits) { return __builtin_amdgcn_ds_swizzle(bits, 0x1f | 0x10 << 10); });
}
// The value rotated by Amount lanes within every 16 lanes (DPP row_ror).
template <int Amount, class T>
KITTENS_DEVICE T rotate_in_16(T value) {
    return as_32_bits(value, [](int bits) {
        // All lanes are written, so there is no old value to preserve and the move folds into the next instruction.
        return __builtin_amdgcn_mov_dpp(bits, 0x120 + Amount, 0xf, 0xf, true);
    });
}
// The sum over each group of 16 lanes, with the same bits in each of them.
template <class T>
KITTENS_DEVICE T sum_of_16_lanes(T value) {
    value += rotate_in_16<8>(value);
    value += rotate_in_16<4>(value);
    value += rotate_in_16<2>(value);
    return value + rotate_in_16<1>(value);
}
// The sum over the 64 lanes, with the same bits in each, without LDS: first within every 16 lanes, then from the last lane of
// each row to the next row (DPP row_bcast:15), from row 1 to row 3 (row_bcast:31), and from the last lane, which holds the
// total, to all. The values that other rows receive are unused, but a move that writes all lanes folds into the addition.
template <int Control, class T>
KITTENS_DEVICE T moved_or_zero(T value) {
    return as_32_bits(value,
                      [](int bits) { return __builtin_amdgcn_mov_dpp(bits, Control, 0xf, 0xf, true); });
}
template <class T>
KITTENS_DEVICE T sum_of_lanes(T value) {
    value = sum_of_16_lanes(value);
    value += moved_or_zero<0x142>(value);
    value += moved_or_zero<0x143>(value);
    return as_32_bits(value, [](int bits) { return __builtin_amdgcn_readlane(bits, 63); });
}
// The same for any operation. A DPP move into another row yields zeros where it has no source, so row results are read as scalars.
template <class Combine>
KITTENS_DEVICE float combine_16_lanes(float value, const Combine& combine) {
    value = combine(value, rotate_in_16<8>(value));
    value = combine(value, rotate_in_16<4>(value));
    value = combine(value, rotate_in_16<2>(value));
    return combine(value, rotate_in_16<1>(value));
}
template <class Combine>
KITTENS_DEVICE float combine_lanes(float value, const Combine& combine) {
    value = combine_16_lanes(value, combine);
    const auto of_row = [&](int lane) {
        return __builtin_bit_cast(float, __builtin_amdgcn_readlane(__builtin_bit_cast(int, value), lane));
    };
    return combine(combine(of_row(0), of_row(16)), combine(of_row(32), of_row(48)));
}
// In every 4 lanes, the values of their lanes First, Second, Third and Fourth (DPP quad_perm).
template <int First, int Second, int Third, int Fourth, class T>
KITTENS_DEVICE T permute_in_4(T value) {
    return as_32_bits(value, [](int bits) {
        return __builtin_amdgcn_update_dpp(bits, bits, First | Second << 2 | Third << 4 | Fourth << 6, 0xf,
                                           0xf, false);
    });
}

// The value of lane 7 - l within every 8 lanes (DPP row_half_mirror).
template <class T>
KITTENS_DEVICE T mirror_in_8(T value) {
    return as_32_bits(value, [](int bits) { return __builtin_amdgcn_mov_dpp(bits, 0x141, 0xf, 0xf, true); });
}
// Reduces over every 4 or 8 lanes; any other count means 16.
template <class Combine>
KITTENS_DEVICE float combine_group(float value, uint32_t lanes, const Combine& combine) {
    value = combine(value, permute_in_4<1, 0, 3, 2>(value));
    value = combine(value, permute_in_4<2, 3, 0, 1>(value));
    if (lanes == 4) return value;
    value = combine(value, mirror_in_8(value));
    return lanes == 8 ? value : combine(value, rotate_in_16<8>(value));
}
// The value of lane Lane within every 16 lanes (DPP row_newbcast).
template <int Lane, class T>
KITTENS_DEVICE T broadcast_in_16(T value) {
    return as_32_bits(value,
                      [](int bits) { return __builtin_amdgcn_mov_dpp(bits, 0x150 + Lane, 0xf, 0xf, true); });
}

KITTENS_DEVICE bool any_lane(bool value) { return __builtin_amdgcn_ballot_w64(value) != 0; }

// One instruction each. v_exp_f32 and v_log_f32 flush denormals; the others are within 1 ulp (CDNA3 ISA
// manual, VOP1).
KITTENS_DEVICE float exponential_base_2(float x) { return __builtin_amdgcn_exp2f(x); }
KITTENS_DEVICE float logarithm_base_2(float x) { return __builtin_amdgcn_logf(x); }
KITTENS_DEVICE float hardware_square_root(float x) { return __builtin_amdgcn_sqrtf(x); }
KITTENS_DEVICE float hardware_reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
KITTENS_DEVICE float hardware_reciprocal_square_root(float x) { return __builtin_amdgcn_rsqf(x); }
KITTENS_DEVICE float absolute_value(float x) { return __builtin_fabsf(x); }
KITTENS_DEVICE float larger(float x, float y) { return __builtin_fmaxf(x, y); }
KITTENS_DEVICE float smaller(float x, float y) { return __builtin_fminf(x, y); }
// For non-negative values: the larger one, or NaN if either is NaN, since the bits of a NaN are larger.
KITTENS_DEVICE float larger_or_nan(float x, float y) {
    const uint32_t a = __builtin_bit_cast(uint32_t, x), b = __builtin_bit_cast(uint32_t, y);
    return __builtin_bit_cast(float,
                              __builtin_elementwise_max(a, b));  // a select would take two instructions
}

// The median of three; with a NaN among them the result is the hardware's choice.
KITTENS_DEVICE float median(float a, float b, float c) { return __builtin_amdgcn_fmed3f(a, b, c); }

// Converts two floats to 8-bit floats in the lower or upper half of a word; the other half is preserved.
template <bool upper>
KITTENS_DEVICE uint32_t pack_fp8(float first, float second, uint32_t other) {
    return __builtin_amdgcn_cvt_pk_fp8_f32(first, second, other, upper);
}
template <bool upper>
KITTENS_DEVICE uint32_t pack_bf8(float first, float second, uint32_t other) {
    return __builtin_amdgcn_cvt_pk_bf8_f32(first, second, other, upper);
}
// Converts two 8-bit floats of the lower or upper half of a word, exactly: e4m3fnuz on gfx942, e4m3fn on gfx950.
template <bool upper>
KITTENS_DEVICE vec<float, 2> unpack_fp8(uint32_t word) {
    return __builtin_amdgcn_cvt_pk_f32_fp8(word, upper);
}
// Converts the two e2m1 of one byte, times a power of two (only the exponent of `scale` is used), to bf16 in one register (gfx950).
template <int byte>
KITTENS_DEVICE uint32_t unpack_fp4(uint32_t word, float scale) {
    return __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(word, scale, byte));
}
// Converts two floats to e2m1 in one byte of a word, preserving the others; ties to even, values past 6 become 6 (gfx950).
template <int byte>
KITTENS_DEVICE uint32_t pack_fp4(float first, float second, uint32_t other) {
    return __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(other, first, second, 1.0f, byte);
}
// Converts two floats to f16 in one register, rounding toward zero.
KITTENS_DEVICE uint32_t pack_f16_toward_zero(float first, float second) {
    return __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_pkrtz(first, second));
}

// x = fraction * 2^exponent with 0.5 <= |fraction| < 1; 0 for zero and for non-finite values.
KITTENS_DEVICE int binary_exponent(float x) { return __builtin_amdgcn_frexp_expf(x); }
KITTENS_DEVICE float times_power_of_2(float x, int exponent) { return __builtin_amdgcn_ldexpf(x, exponent); }

// Selects bytes from low (selectors 0-3) and high (4-7), with one selector per result byte.
KITTENS_DEVICE uint32_t permute_bytes(uint32_t high, uint32_t low, uint32_t selectors) {
    return __builtin_amdgcn_perm(high, low, selectors);
}

}  // namespace kittens
