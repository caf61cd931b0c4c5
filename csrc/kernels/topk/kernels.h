// kernels/topk/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "kinds.h"
#include "sort.h"

namespace hipkittens::topk {

// One part of one row.
template <class T>
class Part {
    template <class V>
    using global = __attribute__((address_space(1))) V*;
    const SelectArguments& arguments_;
    uint32_t row_, part_, first_;

  public:
    kittens::buffer elements;
    uint32_t columns;

    KITTENS_DEVICE Part(const SelectArguments& arguments, uint32_t row, uint32_t part)
        : arguments_(arguments), row_(row), part_(part) {
        uint32_t begin = 0, end = arguments.columns;
        if (arguments.starts) begin = limited(arguments.starts[row]);
        if (arguments.ends) end = limited(arguments.ends[row]);
        const uint32_t before = part * arguments.part_columns;
        const uint32_t there = end > begin ? end - begin : 0;
        columns = there > before ? there - before : 0;
        if (columns > arguments.part_columns) columns = arguments.part_columns;
        first_ = columns ? begin + before : 0;
        const int64_t offset = arguments.x.offset(row, arguments.rows) + first_;
        elements = {static_cast<const char*>(arguments.x.data) + offset * static_cast<int64_t>(sizeof(T)),
                    columns * static_cast<uint32_t>(sizeof(T))};
    }
    KITTENS_DEVICE uint32_t limited(int32_t column) const {
        const uint32_t inside = column > 0 ? static_cast<uint32_t>(column) : 0;
        return inside < arguments_.columns ? inside : arguments_.columns;
    }
    KITTENS_DEVICE bool aligned() const { return arguments_.aligned && first_ % (4 / sizeof(T)) == 0; }
    KITTENS_DEVICE uint32_t wanted() const { return columns < arguments_.k ? columns : arguments_.k; }

    KITTENS_DEVICE void store(uint32_t place, uint32_t column) const {
        const T value = kittens::buffer_load<T>(elements, column * static_cast<uint32_t>(sizeof(T)));
        int32_t id = static_cast<int32_t>(first_ + column);
        if (arguments_.ids)
            id =
                ((global<const int32_t>)arguments_.ids)[static_cast<int64_t>(row_) * arguments_.columns + id];
        write(place, value, id);
    }
    // An entry past the columns of a part sorts last, also in a later pass over the results.
    KITTENS_DEVICE void store_nothing(uint32_t place) const {
        write(place, static_cast<T>(arguments_.smallest ? __builtin_nanf("") : -__builtin_inff()), -1);
    }

  private:
    KITTENS_DEVICE void write(uint32_t place, T value, int32_t id) const {
        const int64_t at = (static_cast<int64_t>(row_) * arguments_.parts + part_) * arguments_.k + place;
        ((global<T>)arguments_.values)[at] = value;
        if (arguments_.wide_indices)
            ((global<int64_t>)arguments_.indices)[at] = id;
        else
            ((global<int32_t>)arguments_.indices)[at] = id;
    }
};

// Candidate keys are listed in LDS, and the list is sorted. A lane's greatest key is one of the row's keys, so the greatest
// bound reached by the greatest keys of k lanes is reached by at least k keys: if few others reach it, these keys are the list.
// Otherwise the bound is searched among all keys, and the list is the selection itself.
template <SelectConfig config>
struct Select {
    using T = typename element_of<config.element>::value;
    static constexpr int waves = config.waves;
    static constexpr int threads = config.threads();
    static constexpr int lds_bytes =
        config.rows_per_workgroup() * config.entries() * static_cast<int>(sizeof(Entry)) +
        Team<waves>::lds_bytes;
    // What fits in LDS, over four SIMDs.
    static constexpr int workgroups = kittens::gfx942.lds_bytes / lds_bytes;
    static constexpr int most_waves = workgroups * threads / 256;
    static constexpr int waves_per_simd = most_waves < 8 ? most_waves : 8;

    KITTENS_DEVICE static void run(const SelectArguments& arguments, kittens::shared_byte* lds) {
        uint32_t row = kittens::workgroup_id_x();
        if constexpr (waves == 1) {
            row = row * config.rows_per_workgroup() + kittens::wave_id();
            lds += kittens::wave_id() * config.entries() * static_cast<int>(sizeof(Entry));
            if (row >= arguments.rows.all) return;
        }
        Team<waves> team(lds + config.entries() * static_cast<int>(sizeof(Entry)));
        const Part<T> part(arguments, row, kittens::workgroup_id_y());
        const RowKeys<T, waves, config.chunks> keys(part.elements, part.aligned(), arguments.smallest);
        const uint32_t k = part.wanted();
        const uint32_t count = list(keys, k, lds, team);
        team.synchronize();

        if (count == k && !arguments.sorted) {
            for (uint32_t i = Team<waves>::lane(); i < k; i += Team<waves>::lanes)
                part.store(i, column_of(kittens::lds_read<Entry>(lds + i * 8)));
        } else if (waves == 1 || count <= longest_ranked) {
            rank<waves>(lds, count, [&](Entry entry, uint32_t place) {
                if (place < k) part.store(place, column_of(entry));
            });
        } else {
            sort(lds, count, team);
            for (uint32_t i = Team<waves>::lane(); i < k; i += Team<waves>::lanes)
                part.store(i, column_of(kittens::lds_read<Entry>(lds + i * 8)));
        }
        for (uint32_t i = k + Team<waves>::lane(); i < arguments.k; i += Team<waves>::lanes)
            part.store_nothing(i);
    }

  private:
    template <class Keys>
    KITTENS_DEVICE static uint32_t list(const Keys& keys, uint32_t k, kittens::shared_byte* lds,
                                        Team<waves>& team) {
        constexpr uint32_t most = config.entries();
        if (k <= static_cast<uint32_t>(Team<waves>::lanes)) {
            const uint32_t greatest[1] = {keys.greatest_of_lane()};
            const uint32_t bound = greatest_bound<Keys::bits>(greatest, k, team).key;
            if (keys.reached(bound, team) <= most) return keys.list(bound, ~0u, lds, 0, most, team);
        }
        // If more than k keys reach the bound: first all greater keys, then as many of the equal ones as needed.
        const Bound bound = keys.bound(k, team);
        uint32_t count = 0, least = bound.exact ? bound.key : bound.key + 1, last = ~0u;
        const bool none_is_greater = least == 0;
        if (!none_is_greater) count = keys.list(least, last, lds, 0, k, team);
        if (!bound.exact) count += keys.list(bound.key, bound.key, lds, count, k - count, team);
        return count;
    }
};

}  // namespace hipkittens::topk
