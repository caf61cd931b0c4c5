// kernels/router/team.h: the lanes that share a token.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "../../tiles/scan_intrinsics.h"

namespace hipkittens::router {

KITTENS_DEVICE uint32_t larger_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

// 16 or all 64 lanes of a wave. The results of reductions over them are the same in each lane.
template <int lanes>
struct Team {
    static_assert(lanes == 16 || lanes == 64);

    KITTENS_DEVICE static uint32_t lane() { return static_cast<uint32_t>(kittens::lane_id()) % lanes; }
    KITTENS_DEVICE static uint32_t of_wave() { return static_cast<uint32_t>(kittens::lane_id()) / lanes; }
    // Whether this lane is the first of the team for which `is` holds.
    KITTENS_DEVICE static bool is_first(bool is) {
        uint64_t others = kittens::lanes_where(is);
        if constexpr (lanes < 64) others &= ((uint64_t{1} << lanes) - 1) << (of_wave() * lanes);
        return is && kittens::count_lanes_before(others) == 0;
    }
    KITTENS_DEVICE static uint32_t greatest(uint32_t value) {
        value = larger_of(value, kittens::rotate_in_16<8>(value));
        value = larger_of(value, kittens::rotate_in_16<4>(value));
        value = larger_of(value, kittens::rotate_in_16<2>(value));
        value = larger_of(value, kittens::rotate_in_16<1>(value));
        if constexpr (lanes == 16) return value;
        // A row without a preceding row receives 0, the smallest number.
        value = larger_of(value, kittens::moved_or_zero_in_rows<0x142>(value));  // row_bcast:15
        value = larger_of(value, kittens::moved_or_zero_in_rows<0x143>(value));  // row_bcast:31
        return kittens::value_of_lane<63>(value);
    }
    KITTENS_DEVICE static float sum(float value) {
        return lanes == 16 ? kittens::sum_of_16_lanes(value) : kittens::sum_of_lanes(value);
    }
};

}  // namespace hipkittens::router
