// kernels/router/choice.h: a token's experts in registers, and the best of those that are left.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "../../tiles/order_key.h"
#include "../../tiles/scan_intrinsics.h"

namespace hipkittens::router {

KITTENS_DEVICE uint32_t larger_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Over the 64 lanes, in a scalar register. What lanes without a neighbour get is 0, the least number.
KITTENS_DEVICE uint32_t greatest_of_lanes(uint32_t value) {
    value = larger_of(value, kittens::rotate_in_16<8>(value));
    value = larger_of(value, kittens::rotate_in_16<4>(value));
    value = larger_of(value, kittens::rotate_in_16<2>(value));
    value = larger_of(value, kittens::rotate_in_16<1>(value));
    value = larger_of(value, kittens::moved_or_zero_in_rows<0x142>(value));  // row_bcast:15
    value = larger_of(value, kittens::moved_or_zero_in_rows<0x143>(value));  // row_bcast:31
    return kittens::value_of_lane<63>(value);
}

template <int per_lane>
struct Choice {
    uint32_t keys[per_lane];  // 0: not to be chosen

    // The expert with the greatest key, of several the first; its key becomes 0. At least one has a key.
    KITTENS_DEVICE uint32_t take() {
        const uint32_t lane = kittens::lane_id();
        uint32_t key = keys[0], place = 0;
#pragma unroll
        for (int j = 1; j < per_lane; ++j) {
            place = keys[j] > key ? j : place;
            key = larger_of(key, keys[j]);
        }
        const uint32_t greatest = greatest_of_lanes(key);
        // The first is the one whose number, subtracted from the last one's, is greatest.
        const uint32_t expert = place * 64 + lane;
        const uint32_t first =
            per_lane * 64 - greatest_of_lanes(key == greatest ? per_lane * 64 - expert : 0);
#pragma unroll
        for (int j = 0; j < per_lane; ++j) keys[j] = j * 64 + lane == first ? 0 : keys[j];
        return first;
    }
};

}  // namespace hipkittens::router
