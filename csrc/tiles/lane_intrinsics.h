// tiles/lane_intrinsics.h: exchanges between lanes, and arithmetic of one instruction.
// SPDX-License-Identifier: MIT
#pragma once
#include "wave_intrinsics.h"

namespace kittens {

// Lanes.

// A value of up to 64 bits through a function of 32 bits.
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
// The value of lane `lane`, which may differ from lane to lane.
template <class T>
KITTENS_DEVICE T read_lane(T value, int lane) {
    return as_32_bits(value, [=](int bits) { return __builtin_amdgcn_ds_bpermute(lane * 4, bits); });
}
// The value of lane l ^ 32, l ^ 16.
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
    // ds_swizzle in groups of 32 lanes: and 0x1f, xor 0x10 (LLVM AMDGPUUsage, swizzle(BITMASK_PERM)).
    return as_32_bits(value, [](int bits) { return __builtin_amdgcn_ds_swizzle(bits, 0x1f | 0x10 << 10); });
}
// The value Amount lanes on, around every 16 lanes (DPP row_ror).
template <int Amount, class T>
KITTENS_DEVICE T rotate_in_16(T value) {
    return as_32_bits(value, [](int bits) {
        // No lane is left out, so there is no old value to keep: the move becomes part of the next instruction.
        return __builtin_amdgcn_mov_dpp(bits, 0x120 + Amount, 0xf, 0xf, true);
    });
}
// The sums over every 16 lanes, the same bits in each of them.
KITTENS_DEVICE float sum_of_16_lanes(float value) {
    value += rotate_in_16<8>(value);
    value += rotate_in_16<4>(value);
    value += rotate_in_16<2>(value);
    return value + rotate_in_16<1>(value);
}
// The sum over the 64 lanes, the same bits in each, without LDS: around every 16 lanes, then the last lane of each row to the
// next one (DPP row_bcast:15), that of row 1 to row 3 (row_bcast:31), and from the last lane, where all of it is, to all. What
// other rows get is of no use, but a move that leaves no lane out becomes part of the addition.
template <int Control>
KITTENS_DEVICE float moved_or_zero(float value) {
    return __builtin_bit_cast(
        float, __builtin_amdgcn_mov_dpp(__builtin_bit_cast(int, value), Control, 0xf, 0xf, true));
}
KITTENS_DEVICE float sum_of_lanes(float value) {
    value = sum_of_16_lanes(value);
    value += moved_or_zero<0x142>(value);
    value += moved_or_zero<0x143>(value);
    return __builtin_bit_cast(float, __builtin_amdgcn_readlane(__builtin_bit_cast(int, value), 63));
}
// Any other operation likewise. A DPP move into another row leaves zeros where it has no source, so the rows are read as scalars.
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
// In every 4 lanes, the values of lanes First, Second, Third and Fourth of them (DPP quad_perm).
template <int First, int Second, int Third, int Fourth, class T>
KITTENS_DEVICE T permute_in_4(T value) {
    return as_32_bits(value, [](int bits) {
        return __builtin_amdgcn_update_dpp(bits, bits, First | Second << 2 | Third << 4 | Fourth << 6, 0xf,
                                           0xf, false);
    });
}

// The value of lane 7 - l of every 8 lanes (DPP row_half_mirror).
template <class T>
KITTENS_DEVICE T mirror_in_8(T value) {
    return as_32_bits(value, [](int bits) { return __builtin_amdgcn_mov_dpp(bits, 0x141, 0xf, 0xf, true); });
}
// Over every 4 or 8 lanes; other counts: 16.
template <class Combine>
KITTENS_DEVICE float combine_group(float value, uint32_t lanes, const Combine& combine) {
    value = combine(value, permute_in_4<1, 0, 3, 2>(value));
    value = combine(value, permute_in_4<2, 3, 0, 1>(value));
    if (lanes == 4) return value;
    value = combine(value, mirror_in_8(value));
    return lanes == 8 ? value : combine(value, rotate_in_16<8>(value));
}
// The value of lane Lane of every 16 lanes (DPP row_newbcast).
template <int Lane, class T>
KITTENS_DEVICE T broadcast_in_16(T value) {
    return as_32_bits(value,
                      [](int bits) { return __builtin_amdgcn_mov_dpp(bits, 0x150 + Lane, 0xf, 0xf, true); });
}

KITTENS_DEVICE bool any_lane(bool value) { return __builtin_amdgcn_ballot_w64(value) != 0; }

// One instruction each; v_exp_f32 and v_log_f32 flush denormals, the rest is within 1 ulp (CDNA3 ISA manual,
// VOP1).
KITTENS_DEVICE float exponential_base_2(float x) { return __builtin_amdgcn_exp2f(x); }
KITTENS_DEVICE float logarithm_base_2(float x) { return __builtin_amdgcn_logf(x); }
KITTENS_DEVICE float hardware_square_root(float x) { return __builtin_amdgcn_sqrtf(x); }
KITTENS_DEVICE float hardware_reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
KITTENS_DEVICE float hardware_reciprocal_square_root(float x) { return __builtin_amdgcn_rsqf(x); }
KITTENS_DEVICE float absolute_value(float x) { return __builtin_fabsf(x); }
KITTENS_DEVICE float larger(float x, float y) { return __builtin_fmaxf(x, y); }
KITTENS_DEVICE float smaller(float x, float y) { return __builtin_fminf(x, y); }
// Of what is not negative: the larger one, and NaN if one of them is NaN, which has the larger bits.
KITTENS_DEVICE float larger_or_nan(float x, float y) {
    const uint32_t a = __builtin_bit_cast(uint32_t, x), b = __builtin_bit_cast(uint32_t, y);
    return __builtin_bit_cast(float, __builtin_elementwise_max(a, b));  // a choice would be two instructions
}

// The one in the middle; which one with a NaN among them is the hardware's choice.
KITTENS_DEVICE float median(float a, float b, float c) { return __builtin_amdgcn_fmed3f(a, b, c); }

// Two floats as 8-bit codes in the lower or upper half of a word whose other half stays.
template <bool upper>
KITTENS_DEVICE uint32_t pack_fp8(float first, float second, uint32_t other) {
    return __builtin_amdgcn_cvt_pk_fp8_f32(first, second, other, upper);
}
template <bool upper>
KITTENS_DEVICE uint32_t pack_bf8(float first, float second, uint32_t other) {
    return __builtin_amdgcn_cvt_pk_bf8_f32(first, second, other, upper);
}
// Two codes of the lower or upper half of a word, exactly: e4m3fnuz on gfx942, e4m3fn on gfx950.
template <bool upper>
KITTENS_DEVICE vec<float, 2> unpack_fp8(uint32_t word) {
    return __builtin_amdgcn_cvt_pk_f32_fp8(word, upper);
}
// Two e2m1 of a byte of a word times a power of two, of whose float the exponent alone counts, as bf16 in one register (gfx950).
template <int byte>
KITTENS_DEVICE uint32_t unpack_fp4(uint32_t word, float scale) {
    return __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(word, scale, byte));
}
// Two floats as e2m1 in a byte of a word whose other bytes stay, ties to even; what is beyond 6 is 6 (gfx950).
template <int byte>
KITTENS_DEVICE uint32_t pack_fp4(float first, float second, uint32_t other) {
    return __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(other, first, second, 1.0f, byte);
}
// Two floats as f16 in one register, toward zero.
KITTENS_DEVICE uint32_t pack_f16_toward_zero(float first, float second) {
    return __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_pkrtz(first, second));
}

// x = fraction * 2^exponent with 0.5 <= |fraction| < 1; 0 for 0 and for what is not finite.
KITTENS_DEVICE int binary_exponent(float x) { return __builtin_amdgcn_frexp_expf(x); }
KITTENS_DEVICE float times_power_of_2(float x, int exponent) { return __builtin_amdgcn_ldexpf(x, exponent); }

// Bytes chosen from low (selectors 0-3) and high (4-7); a selector per result byte.
KITTENS_DEVICE uint32_t permute_bytes(uint32_t high, uint32_t low, uint32_t selectors) {
    return __builtin_amdgcn_perm(high, low, selectors);
}

}  // namespace kittens
