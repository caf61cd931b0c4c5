// kernels/topk/row_keys.h: a row in registers as keys, how many of them reach a bound, and the list of those that do.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/order_key.h"
#include "../../tiles/row_chunk.h"
#include "../element_of.h"
#include "team.h"

namespace hipkittens::topk {

// The sorted entries: the key in the upper bits, and below it a tie-breaker that makes the first of equal ones the greatest.
using Entry = uint64_t;
KITTENS_DEVICE Entry entry_of(uint32_t key, uint32_t column) {
    return static_cast<uint64_t>(key) << 32 | (~0u - column);
}
KITTENS_DEVICE uint32_t column_of(Entry entry) { return ~0u - static_cast<uint32_t>(entry); }

// A bound that at least `want` keys reach, and the number that do. If it is not `exact`, the bound is the key of the last one
// wanted, and more keys than wanted reach it.
struct Bound {
    uint32_t key, reached;
    bool exact;
};

// The greatest bound that `want` of the keys reach, determined bit by bit from the highest. `want` must not exceed the number of
// keys. Stops at a bound that exactly `want` reach.
template <int bits, int waves, int count>
KITTENS_DEVICE Bound greatest_bound(const uint32_t (&keys)[count], uint32_t want, Team<waves>& team) {
    Bound found = {0, ~0u, false};
#pragma clang loop unroll(disable)
    for (int bit = bits - 1; bit >= 0 && !found.exact; --bit) {
        const uint32_t key = found.key | 1u << bit;
        uint32_t reached = 0;
#pragma unroll
        for (int i = 0; i < count; ++i) reached += kittens::count_lanes(keys[i] >= key);
        reached = team.sum(reached);
        if (reached >= want) found = {key, reached, reached == want};
    }
    return found;
}

template <class T, int waves, int chunks>
class RowKeys {
    static constexpr int count = chunks * 8;
    uint32_t keys_[count];

    KITTENS_DEVICE static uint32_t column(int chunk) {
        return ((Team<waves>::wave() * chunks + chunk) * 64 + kittens::lane_id()) * 8;
    }

  public:
    static constexpr int bits = 32 - kittens::implied_key_bits<T>;

    // `row` ends at the end of the row; columns past it have the key 0. `inverted`: the smallest element has the greatest key,
    // and NaN the key 0.
    KITTENS_DEVICE RowKeys(kittens::buffer row, bool aligned, bool inverted) {
        constexpr uint32_t bytes = sizeof(T);
        const uint32_t columns = row.bytes / bytes;
        const uint32_t flip = inverted ? ~0u : 0u;
        kittens::raw_eight<T> raw[chunks];
#pragma unroll
        for (int c = 0; c < chunks; ++c)
            if (aligned && column(c) + 8 <= columns) {
                raw[c] = kittens::load_raw<T>(row, column(c));
            } else {
#pragma unroll
                for (int i = 0; i < 8; ++i) raw[c][i] = kittens::buffer_load<T>(row, (column(c) + i) * bytes);
            }
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
            const kittens::eight values = kittens::widened(raw[c]);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                keys_[c * 8 + i] = column(c) + i < columns ? (kittens::order_key(values[i]) ^ flip) >>
                                                                 kittens::implied_key_bits<T>
                                                           : 0;
        }
    }

    KITTENS_DEVICE uint32_t greatest_of_lane() const {
        uint32_t greatest = keys_[0];
#pragma unroll
        for (int i = 1; i < count; ++i) greatest = keys_[i] > greatest ? keys_[i] : greatest;
        return greatest;
    }
    KITTENS_DEVICE uint32_t reached(uint32_t bound, Team<waves>& team) const {
        uint32_t found = 0;
#pragma unroll
        for (int i = 0; i < count; ++i) found += kittens::count_lanes(keys_[i] >= bound);
        return team.sum(found);
    }
    KITTENS_DEVICE Bound bound(uint32_t want, Team<waves>& team) const {
        return greatest_bound<bits>(keys_, want, team);
    }

    // Writes the entries of keys from `least` to `greatest`, in the order of columns, to list[first ..], at most `most` of
    // them. Returns how many there are.
    KITTENS_DEVICE uint32_t list(uint32_t least, uint32_t greatest, kittens::shared_byte* entries,
                                 uint32_t first, uint32_t most, Team<waves>& team) const {
        const auto chosen = [&](uint32_t key) { return key - least <= greatest - least; };
        uint32_t up_to_lane[chunks], of_lane[chunks], all = 0;
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
            of_lane[c] = 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) of_lane[c] += chosen(keys_[c * 8 + i]);
            up_to_lane[c] = all + kittens::inclusive_sum(of_lane[c]);
            all = kittens::value_of_lane<63>(up_to_lane[c]);
        }
        const auto waves_before = team.sums(all);
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
            uint32_t position = waves_before.before + up_to_lane[c] - of_lane[c];
            if (of_lane[c] == 0) continue;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (!chosen(keys_[c * 8 + i])) continue;
                if (position < most)
                    kittens::lds_write(entry_of(keys_[c * 8 + i], column(c) + i),
                                       entries + (first + position) * 8);
                ++position;
            }
        }
        return waves_before.all < most ? waves_before.all : most;
    }
};

}  // namespace hipkittens::topk
