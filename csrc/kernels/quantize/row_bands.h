// kernels/quantize/row_bands.h: bands of 32 rows of scales that start anew with each range of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/scan_intrinsics.h"
#include "kinds.h"

namespace hipkittens::quantize {

// A tile of a grouped product begins with the first row of its group, and needs a band of scales to begin there as well. Row r of
// range g, which begins with row f, is row 32 (f / 32 + g) + r - f of the bands. The rows past the last end form a range as well.
struct BandsOfRanges {
    RangeEnds ranges;

    // For a row that is the same in all lanes. An end below 0 counts as 0; for any ends, the result is below row + 32 (ranges + 1).
    KITTENS_DEVICE uint32_t place_of(uint32_t row) const {
        uint32_t begin = 0, before = 0;  // ranges
        for (uint32_t first = 0; first < ranges.count; first += kittens::wave_lanes) {
            const uint32_t range = first + kittens::lane_id();
            int end = INT32_MAX;
            if (range < ranges.count)
                end = ((__attribute__((address_space(1))) const int*)ranges.ends)[range];
            const uint64_t past = kittens::lanes_where(end <= static_cast<int>(row));
            if (!past) continue;
            const uint32_t last =
                kittens::value_of_lane(static_cast<uint32_t>(end), 63 - __builtin_clzll(past));
            begin = static_cast<int>(last) < 0 ? 0 : last;
            before += static_cast<uint32_t>(__builtin_popcountll(past));
        }
        return band_rows * (begin / band_rows + before) + row - begin;
    }
    // For rows that ascend with the lanes, with few distinct ones in a wave. All lanes must call it.
    KITTENS_DEVICE uint32_t place(uint32_t row) const {
        const uint32_t last = kittens::value_of_lane<63>(row);
        uint32_t result = 0;
        for (uint32_t each = kittens::value_of_lane<0>(row); each <= last; ++each) {
            const uint32_t found = place_of(each);
            result = row == each ? found : result;
        }
        return result;
    }
    // For a separate row in each of some lanes, in any order. All lanes must call it.
    KITTENS_DEVICE uint32_t places(uint32_t row, uint64_t lanes) const {
        uint32_t begin = 0, before = 0;
        for (uint32_t first = 0; first < ranges.count; first += kittens::wave_lanes) {
            const uint32_t range = first + kittens::lane_id();
            int end = INT32_MAX;
            if (range < ranges.count)
                end = ((__attribute__((address_space(1))) const int*)ranges.ends)[range];
            for (uint64_t left = lanes; left; left &= left - 1) {
                const int lane = __builtin_ctzll(left);
                const uint64_t past =
                    kittens::lanes_where(end <= static_cast<int>(kittens::value_of_lane(row, lane)));
                if (!past) continue;
                const uint32_t last =
                    kittens::value_of_lane(static_cast<uint32_t>(end), 63 - __builtin_clzll(past));
                if (kittens::lane_id() != lane) continue;
                begin = static_cast<int>(last) < 0 ? 0 : last;
                before += static_cast<uint32_t>(__builtin_popcountll(past));
            }
        }
        return band_rows * (begin / band_rows + before) + row - begin;
    }
};

}  // namespace hipkittens::quantize
