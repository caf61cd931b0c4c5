// tiles/scan_intrinsics.h: integer sums over lanes, and prefix sums over lanes.
// SPDX-License-Identifier: MIT
#pragma once
#include "lane_intrinsics.h"

namespace kittens {

// The value that DPP control `Control` moves to a lane, zero where it moves none. Rows: a mask with one bit per row of 16 lanes.
template <int Control, int Rows = 0xf>
KITTENS_DEVICE uint32_t moved_or_zero_in_rows(uint32_t value) {
    return static_cast<uint32_t>(
        __builtin_amdgcn_update_dpp(0, static_cast<int>(value), Control, Rows, 0xf, false));
}
// Inclusive prefix sum within every 16 lanes.
KITTENS_DEVICE uint32_t inclusive_sum_of_16(uint32_t value) {
    value += moved_or_zero_in_rows<0x111>(value);  // row_shr:1
    value += moved_or_zero_in_rows<0x112>(value);
    value += moved_or_zero_in_rows<0x114>(value);
    return value + moved_or_zero_in_rows<0x118>(value);
}
// Inclusive prefix sum over the wave: row_bcast:15 and row_bcast:31 bring in the sums of the preceding rows (CDNA3 ISA
// manual, DPP_CTRL).
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
// The same for a lane that is known only at run time and is the same for all lanes.
KITTENS_DEVICE uint32_t value_of_lane(uint32_t value, int lane) {
    return static_cast<uint32_t>(__builtin_amdgcn_readlane(static_cast<int>(value), lane));
}
// One bit per lane for which `is` holds, and the number of these lanes.
KITTENS_DEVICE uint64_t lanes_where(bool is) { return __builtin_amdgcn_ballot_w64(is); }
KITTENS_DEVICE uint32_t count_lanes(bool is) {
    return static_cast<uint32_t>(__builtin_popcountll(lanes_where(is)));
}
// The number of set bits in `lanes`, which may differ between lanes, that belong to lanes before this one.
KITTENS_DEVICE uint32_t count_lanes_before(uint64_t lanes) {
    return __builtin_amdgcn_mbcnt_hi(static_cast<uint32_t>(lanes >> 32),
                                     __builtin_amdgcn_mbcnt_lo(static_cast<uint32_t>(lanes), 0u));
}

}  // namespace kittens
