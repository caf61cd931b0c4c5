// kernels/attention/mask.h: scores of keys that a query does not see become -inf.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "arguments.h"

namespace hipkittens::attention {

// Keys first .. past-1 that somebody of queries begin .. end-1 sees; queries from n_q on do not count.
struct KeyRange {
    int first, past;

    KITTENS_DEVICE KeyRange(const Mask& mask, int begin, int end) {
        const int last_query = (end < mask.n_q ? end : mask.n_q) - 1;
        first = mask.first_key(begin);
        past = begin < mask.n_q ? mask.last_key(last_query) + 1 : 0;
    }
    // Its share in one of several parts: whole tiles of `count` keys, as many for each part but the last ones.
    KITTENS_DEVICE KeyRange part_of(int part, int parts, int count) const {
        KeyRange range = *this;
        if (parts == 1 || past <= first) return range;
        const int begin = first / count * count;
        const uint32_t tiles = static_cast<uint32_t>(past - begin + count - 1) / count;
        const int share = (tiles + parts - 1) / static_cast<uint32_t>(parts) * count;
        const int from = begin + part * share;
        if (from > range.first) range.first = from;
        if (from + share < range.past) range.past = from + share;
        return range;
    }
    // Do all of queries begin .. end-1 see all of keys key .. key+count-1?
    KITTENS_DEVICE static bool all_visible(const Mask& mask, int begin, int end, int key, int count) {
        return mask.first_key(end - 1) <= key && key + count - 1 <= mask.last_key(begin);
    }
};

// The places of `count` keys that all of queries begin .. end-1 see, for loops that ask often: one comparison.
struct ClearKeys {
    int first;
    uint32_t span;

    KITTENS_DEVICE ClearKeys(const Mask& mask, int begin, int end, int count) {
        const int past = mask.last_key(begin) + 2 - count;
        first = mask.first_key(end - 1);
        span = past > first ? past - first : 0;
    }
    KITTENS_DEVICE bool holds(int key) const { return static_cast<uint32_t>(key - first) < span; }
};

// Scores with queries along rows (row layout: one query per lane) and keys along columns. The tile begins at
// (query, key) of the sequences. `Keys`: the shape whose column order the keys have (tile_key).
template <class Keys, class Scores>
KITTENS_DEVICE void hide_invisible(Scores& scores, const Mask& mask, int query, int key) {
    static_assert(Scores::layout::is_row && Scores::height == 1, "a lane's scores belong to one query");
    static_assert(Keys::rows == Scores::shape::rows, "the same lanes");
    constexpr int per_lane = Keys::rows * Keys::cols / kittens::wave_lanes;
    const kittens::Coordinate own = kittens::row_layout(Keys::value(), kittens::lane_id(), 0);
    int left = mask.first_key(query + own.row) - key - own.col;
    const int right = mask.last_key(query + own.row) - key - own.col;
    // One comparison for both sides: columns before the left one wrap around. Nothing is visible from far away.
    const uint32_t span = right < left ? 0 : right - left;
    if (right < left) left = unlimited;
    kittens::for_each_register<Scores>([&](int i, int j, int e) {
        const int number = j * Scores::per_lane + e;
        const int col =
            number / per_lane * Keys::cols + kittens::row_layout(Keys::value(), 0, number % per_lane).col;
        if (static_cast<uint32_t>(col - left) > span) scores.tiles[i][j][e] = -__builtin_inff();
    });
}

}  // namespace hipkittens::attention
