// kernels/attention/mask.h: which keys a query sees, and masking of scores of the others.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "arguments.h"
#include "history_mask.h"

namespace hipkittens::attention {

using namespace kittens;

// Keys first .. past-1 that any of queries begin .. end-1 sees; queries from n_q on are ignored.
struct KeyRange {
    int first, past;

    KITTENS_DEVICE KeyRange(const Mask& mask, int begin, int end) {
        const int last_query = (end < mask.n_q ? end : mask.n_q) - 1;
        first = mask.first_key(begin);
        past = begin < mask.n_q ? mask.last_key(last_query) + 1 : 0;
    }
    KITTENS_DEVICE KeyRange(const HistoryMask& mask, int begin, int end) {
        first = mask.first_key(begin);
        past = begin < mask.n_q ? mask.furthest_key(begin, end < mask.n_q ? end : mask.n_q) + 1 : 0;
    }
    // One of several splits: whole tiles of `count` keys, the same number for each split except the last ones.
    KITTENS_DEVICE KeyRange split_of(int split, int splits, int count) const {
        KeyRange range = *this;
        if (splits == 1 || past <= first) return range;
        const int begin = first / count * count;
        const uint32_t tiles = static_cast<uint32_t>(past - begin + count - 1) / count;
        const int length = (tiles + splits - 1) / static_cast<uint32_t>(splits) * count;
        const int from = begin + split * length;
        if (from > range.first) range.first = from;
        if (from + length < range.past) range.past = from + length;
        return range;
    }
    // Whether all of queries begin .. end-1 see all of keys key .. key+count-1.
    KITTENS_DEVICE static bool all_visible(const Mask& mask, int begin, int end, int key, int count) {
        return mask.first_key(end - 1) <= key && key + count - 1 <= mask.last_key(begin);
    }
    KITTENS_DEVICE static bool all_visible(const HistoryMask& mask, int begin, int end, int key, int count) {
        return !mask.alone() && mask.first_key(end - 1) <= key &&
               key + count - 1 <= mask.last_key_of_all(begin, end);
    }
};

// Start positions of runs of `count` keys visible to all of queries begin .. end-1; for loops that test often: one comparison.
struct FullyVisibleKeys {
    int first;
    uint32_t span;

    KITTENS_DEVICE FullyVisibleKeys(const Mask& mask, int begin, int end, int count) {
        const int past = mask.last_key(begin) + 2 - count;
        first = mask.first_key(end - 1);
        span = past > first ? past - first : 0;
    }
    KITTENS_DEVICE bool holds(int key) const { return static_cast<uint32_t>(key - first) < span; }
};

// The part of a run of columns that one row sees: left .. left + span. One comparison covers both sides: columns before
// the left one wrap around.
struct Visible {
    int left;
    uint32_t span;

    // Columns left .. right; none if right is less.
    KITTENS_DEVICE static Visible between(int left, int right) {
        const uint32_t span = right < left ? 0 : right - left;
        return {right < left ? unlimited : left, span};
    }
    KITTENS_DEVICE bool holds(int column) const { return static_cast<uint32_t>(column - left) <= span; }
};

// The same, plus columns before `past_context` and one other column, which are always visible.
struct VisibleHistory {
    Visible others;
    int own, past_context;

    KITTENS_DEVICE bool holds(int column) const {
        return others.holds(column) || column == own || column < past_context;
    }
};

// Replaces invisible elements of a lane's row: -inf for scores, 0 for their exponentials. `Columns`: the base shape in whose order
// the registers hold columns (tile_key); the vector begins at register `first`. `fence_every`: number of registers after which a
// scheduling fence keeps the scheduler from doing all comparisons first, with their results in scalar registers; 0: no fences.
template <class Columns, int fence_every = 0, class Vector, class Seen>
KITTENS_DEVICE void apply_mask(Vector& scores, int first, const Seen& visible, float fill) {
    constexpr int per_lane = Columns::rows * Columns::cols / wave_lanes;
#pragma unroll
    for (int e = 0; e < static_cast<int>(sizeof(Vector) / sizeof(scores[0])); ++e) {
        const int number = first + e;
        const int column =
            number / per_lane * Columns::cols + row_layout(Columns::value(), 0, number % per_lane).col;
        if (!visible.holds(column)) scores[e] = fill;
        if constexpr (fence_every > 0)
            if (e % fence_every == fence_every - 1) schedule_fence();
    }
}
// For a tile with one row per lane.
template <class Columns, int fence_every = 0, class Shape, class T, int rows, int cols, class Seen>
KITTENS_DEVICE void apply_mask(rt<T, rows, cols, row_l, Shape>& scores, const Seen& visible, float fill) {
    using Tile = rt<T, rows, cols, row_l, Shape>;
    static_assert(Tile::height == 1 && Columns::rows == Shape::rows, "a lane's scores belong to one row");
#pragma unroll
    for (int j = 0; j < Tile::width; ++j)
        apply_mask<Columns, fence_every>(scores.tiles[0][j], j * Tile::per_lane, visible, fill);
}

// The keys that this lane's query sees, with columns counted from `key`.
template <class Columns>
KITTENS_DEVICE Visible visible_keys(const Mask& mask, int own_query, int key) {
    const int own_col = row_layout(Columns::value(), lane_id(), 0).col;
    return Visible::between(mask.first_key(own_query) - key - own_col,
                            mask.last_key(own_query) - key - own_col);
}
template <class Columns>
KITTENS_DEVICE VisibleHistory visible_keys(const HistoryMask& mask, int own_query, int key) {
    const int from = key + row_layout(Columns::value(), lane_id(), 0).col;
    return {Visible::between(mask.first_key(own_query) - from, mask.last_key(own_query) - from),
            own_query - from, -unlimited};
}
// The queries that see this lane's key.
template <class Columns>
KITTENS_DEVICE Visible visible_queries(const Mask& mask, int own_key, int query) {
    const int from = query + row_layout(Columns::value(), lane_id(), 0).col;
    return Visible::between(mask.first_query(own_key) - from, mask.last_query(own_key) - from);
}
template <class Columns>
KITTENS_DEVICE VisibleHistory visible_queries(const HistoryMask& mask, int own_key, int query) {
    const int from = query + row_layout(Columns::value(), lane_id(), 0).col;
    return {Visible::between(mask.first_query(own_key) - from, mask.last_query(own_key) - from),
            own_key - from, mask.in_view_of_context(own_key) ? mask.context - from : -unlimited};
}

}  // namespace hipkittens::attention
