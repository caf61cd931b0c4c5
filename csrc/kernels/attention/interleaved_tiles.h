// kernels/attention/interleaved_tiles.h: how tiles of keys and values get to LDS while the interleaved forward reads others.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward_wave.h"
#include "interleaved_schedule.h"
#include "ring_offset.h"
#include "staged_queries.h"

namespace hipkittens::attention {

template <ForwardConfig config>
struct InterleavedTiles : ForwardWave<config> {
    using Wave = ForwardWave<config>;
    using typename Wave::Keys, typename Wave::KeyTile, typename Wave::T, typename Wave::Values,
        typename Wave::ValueTile;
    using Wave::arguments, Wave::direct;
    // Tiles in LDS: those being read, and those in flight. At the barrier of tile t, loads are issued for the keys of tile t + 2
    // and the values of tile t + 2. Through registers, values are committed to LDS one barrier later: t + 1. Where a tile is one
    // chunk, its keys are read a tile before the values, and are one tile further.
    static constexpr int key_tiles = 2, value_tiles = direct ? 3 : 2;
    static_assert(!(Wave::halves && direct), "the direct loads of half a tile are not counted");
    static constexpr int key_bytes = key_tiles * KeyTile::bytes, value_bytes = value_tiles * ValueTile::bytes;
    // Queries also pass through LDS, in the space later used by values.
    using Staged = StagedQueries<T, config.waves, tile_width(config.head_dim)>;
    static constexpr int query_offset = key_bytes + ValueTile::bytes,
                         query_end = Wave::queries_through_lds ? query_offset + Staged::bytes : 0;
    static constexpr int lds_bytes =
        query_end > key_bytes + value_bytes ? query_end : key_bytes + value_bytes;
    static_assert(lds_bytes <= target.lds_bytes);
    // Two keep the matrix cores busy; each has more registers than a third would leave.
    static constexpr int room = target.lds_bytes / lds_bytes * config.waves / 4,
                         waves_per_simd = room < 2 ? room : 2;

    using Schedule = InterleavedSchedule<config.head_dim, config.value_dim, Wave::halves>;
    static_assert(Wave::keys == 2 * Schedule::chunk, "the loop's body is two chunks");
    static constexpr int key_loads_per_tile = Keys::Loads::loads_per_wave,
                         value_loads_per_tile = Values::Loads::loads_per_wave,
                         refill_items = direct ? key_loads_per_tile + value_loads_per_tile : 4;
    // Keys are needed from the second half of the previous tile on, values from the barrier of their own tile on.
    static constexpr int after_barrier = Schedule::barrier_slot + 1;
    static constexpr load_pipeline<2> loads{Schedule::slots,
                                            {{after_barrier, -Schedule::chunk_slots, 2, key_loads_per_tile},
                                             {after_barrier, after_barrier, 2, value_loads_per_tile}}};
    static constexpr int loads_in_flight =
        direct ? loads.in_flight(Schedule::barrier_slot, Schedule::slots) : any_vector_memory;

    shared_byte* lds;
    RingOffset<KeyTile, key_tiles> key_fill;
    RingOffset<ValueTile, value_tiles> value_fill{(value_tiles - 1) * ValueTile::bytes};
    Keys key_loads;
    Values value_loads;
    tile_iterator<tiles_of_rows> k_source, v_source;
    buffer view;  // of the loads that are being issued

    KITTENS_DEVICE InterleavedTiles(const ForwardArguments& arguments, shared_byte* lds)
        : Wave(arguments), lds(lds) {}

    KITTENS_DEVICE KeyTile key_tile(uint32_t offset) const { return {lds + offset}; }
    KITTENS_DEVICE ValueTile value_tile(uint32_t offset) const { return {lds + key_bytes + offset}; }

    KITTENS_DEVICE void init_sources() {
        const auto k = Wave::keys_of(arguments.k, arguments.head_dim),
                   v = Wave::keys_of(arguments.v, arguments.value_dim);
        k_source = Wave::template tiles_of<typename Keys::Loads>(k);
        v_source = Wave::template tiles_of<typename Values::Loads>(v);
        key_loads.init_offsets(k.row_bytes(), arguments.head_dim);
        value_loads.loads.init_offsets(v.row_bytes());
    }
    // Issues what the barriers of two tiles before the first one would have issued.
    KITTENS_DEVICE void prologue() {
        if constexpr (direct) {
            if constexpr (Wave::queries_through_lds)
                Staged::issue(Wave::queries_of(arguments.q), Wave::first_query, lds + query_offset);
            issue_keys(0);
            if constexpr (Wave::queries_through_lds)
                Staged::template read<key_loads_per_tile>(Wave::query, Wave::query_sign(),
                                                          lds + query_offset);
            issue_values(0);
            wait_vector_memory<value_loads_per_tile>();
            s_barrier();
            issue_keys(KeyTile::bytes);
            issue_values(ValueTile::bytes);
        } else {
            issue_keys(0);
            issue_values(0);
            key_loads.loads.commit(key_tile(0));
            value_loads.loads.commit(value_tile(0));
            issue_keys(0);
            issue_values(0);
            key_loads.loads.commit(key_tile(KeyTile::bytes));
            issue_keys(0);
            barrier();
        }
    }
    // The keys of tile 2, in the place of those that all waves have read.
    KITTENS_DEVICE void next_keys() {
        key_loads.loads.commit(key_tile(key_fill.value));
        issue_keys(0);
        key_fill.advance();
    }
    KITTENS_DEVICE void issue_keys(uint32_t offset) {
        key_loads.loads.issue_prepared(k_source.next(), key_tile(offset));
    }
    KITTENS_DEVICE void issue_values(uint32_t offset) {
        value_loads.loads.issue_prepared(v_source.next(), value_tile(offset));
    }
    // The items after a barrier: loads of keys, then of values; through registers, the loads issued after the previous
    // barrier are first committed to LDS.
    template <int item>
    KITTENS_DEVICE void refill() {
        if constexpr (direct) {
            if constexpr (item == 0) view = k_source.next();
            if constexpr (item == key_loads_per_tile) view = v_source.next();
            if constexpr (item < key_loads_per_tile)
                key_loads.loads.template issue_item<item>(view, key_tile(key_fill.value));
            else
                value_loads.loads.template issue_item<item - key_loads_per_tile>(
                    view, value_tile(value_fill.value));
        } else {
            if constexpr (item == 0) value_loads.loads.commit(value_tile(value_fill.value));
            if constexpr (item == 1) issue_values(value_fill.value);
            if constexpr (item == 2) key_loads.loads.commit(key_tile(key_fill.value));
            if constexpr (item == 3) issue_keys(key_fill.value);
        }
        if constexpr (item == refill_items - 1) {
            key_fill.advance();
            value_fill.advance();
        }
    }
    KITTENS_DEVICE void refill_all() {
        for_each_index<refill_items>([&](auto item) KITTENS_INLINE { refill<item.value>(); });
    }
    // Everything read until the next barrier is then in LDS for all waves, and everything they have read may be overwritten.
    KITTENS_DEVICE void wait_and_barrier() {
        wait<loads_in_flight, 0>();
        s_barrier();
    }
};

}  // namespace hipkittens::attention
