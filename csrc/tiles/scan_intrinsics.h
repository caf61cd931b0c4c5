// tiles/scan_intrinsics.h: sums of whole numbers over lanes, and over the lanes before each.
// SPDX-License-Identifier: MIT
#pragma once
#include "lane_intrinsics.h"

namespace kittens {

// The value that DPP control `Control` moves to a lane, zero where it moves none. Rows: 16 lanes each, a bit for each.
template <int Control, int Rows = 0xf>
KITTENS_DEVICE uint32_t moved_or_zero_in_rows(uint32_t value) {
    return static_cast<uint32_t>(
        __builtin_amdgcn_update_dpp(0, static_cast<int>(value), Control, Rows, 0xf, false));
}
// Of every 16 lanes, the sum over a lane and those before it.
KITTENS_DEVICE uint32_t inclusive_sum_of_16(uint32_t value) {
    value += moved_or_zero_in_rows<0x111>(value);  // row_shr:1
    value += moved_or_zero_in_rows<0x112>(value);
    value += moved_or_zero_in_rows<0x114>(value);
    return value + moved_or_zero_in_rows<0x118>(value);
}
// The sum over a lane and those before it: that of the rows before comes by row_bcast:15 and row_bcast:31 (CDNA3 ISA manual,
// DPP_CTRL).
KITTENS_DEVICE uint32_t inclusive_sum(uint32_t value) {
    value = inclusive_sum_of_16(value);
    value += moved_or_zero_in_rows<0x142, 0xa>(value);
    return value + moved_or_zero_in_rows<0x143, 0xc>(value);
}
// The value of one lane, in a scalar register.
template <int Lane>
KITTENS_DEVICE uint32_t value_of_lane(uint32_t value) {
    return static_cast<uint32_t>(__builtin_amdgcn_readlane(static_cast<int>(value), Lane));
}
// The same of a lane that is known when the kernel runs, and to all lanes alike.
KITTENS_DEVICE uint32_t value_of_lane(uint32_t value, int lane) {
    return static_cast<uint32_t>(__builtin_amdgcn_readlane(static_cast<int>(value), lane));
}
// A bit for each lane for which `is` holds, and how many there are.
KITTENS_DEVICE uint64_t lanes_where(bool is) { return __builtin_amdgcn_ballot_w64(is); }
KITTENS_DEVICE uint32_t count_lanes(bool is) {
    return static_cast<uint32_t>(__builtin_popcountll(lanes_where(is)));
}
// Of the bits of `lanes`, which may differ from lane to lane, those of lanes before this one.
KITTENS_DEVICE uint32_t count_lanes_before(uint64_t lanes) {
    return __builtin_amdgcn_mbcnt_hi(static_cast<uint32_t>(lanes >> 32),
                                     __builtin_amdgcn_mbcnt_lo(static_cast<uint32_t>(lanes), 0u));
}

}  // namespace kittens
