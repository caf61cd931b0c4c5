// kernels/attention/queries_in_buffers.h: the queries of a step in the LDS of gfx950, for the loop over them.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward_arguments.h"
#include "forward_tiles.h"

namespace hipkittens::attention {

// 32 columns from `col` on, of 8 rows from the lane's on; the second four are `step` rows further.
template <class Tile, class T>
KITTENS_DEVICE vec<T, 8> read_transposed(shared_byte* data, uint32_t lane_at, int row, int step, int col) {
    const vec<T, 4> low = lds_read_transposed<T>(data + stepped_offset<Tile>(lane_at, row, col)),
                    high = lds_read_transposed<T>(data + stepped_offset<Tile>(lane_at, row + step, col));
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}

// Q and dO are stored once and read in both orientations: some buffers, each with a tile of Q, one of dO and their
// statistics, then dS, with keys along its rows.
template <class T, int queries, int head_dim, int value_dim, int keys, int threads, int buffers>
struct QueriesInBuffers {
    // which: 0 for Q, 1 for dO.
    template <int which>
    using Tile = st<T, queries, tile_width(which ? value_dim : head_dim), Access::rows_and_columns_32>;
    template <int which>
    using Loads = global_to_shared<Tile<which>, threads, Fill::direct>;
    // dS of a step. That of the other parity is in a second tile or, with 32 queries, in the other half of the columns.
    using DsTile = st<T, keys, statistics_block, Access::columns_32_written_in_runs>;
    static constexpr int ds_tiles = queries == statistics_block ? 2 : 1;
    using Fragment = vec<T, 8>;

    static constexpr int statistics_at = Tile<0>::bytes + Tile<1>::bytes,
                         buffer_bytes = statistics_at + statistics_bytes, ds_at = buffers * buffer_bytes,
                         bytes = ds_at + ds_tiles * DsTile::bytes;

    shared_byte* lds;
    uint32_t row_major_at[2], transposed_at[2], ds_at_lane, shared_ds_at_lane;
    Loads<0> q_loads;
    Loads<1> do_loads;

    // dq_query: the first query of the wave's tiles of dQ; shared_dq_key: the first of the keys that it multiplies for a shared one.
    KITTENS_DEVICE QueriesInBuffers(shared_byte* lds, int dq_query, int shared_dq_key) : lds(lds) {
        const int lane = lane_id(), low = lane % 32, high = lane / 32, inside = lane % 16;
        const int row = high * 8 + inside / 4, col = low / 16 * 16 + inside % 4 * 4;
        row_major_at[0] = Tile<0>::offset(low, high * 8), row_major_at[1] = Tile<1>::offset(low, high * 8);
        transposed_at[0] = Tile<0>::offset(high * 4 + inside / 4, col);
        transposed_at[1] = Tile<1>::offset(high * 4 + inside / 4, col);
        ds_at_lane = DsTile::offset(row, dq_query + col);
        shared_ds_at_lane = DsTile::offset(shared_dq_key + row, col);
    }

    KITTENS_DEVICE static uint32_t ds_of(uint32_t lane_at, int parity) {
        return ds_tiles == 2 ? lane_at + parity * DsTile::bytes : lane_at ^ parity * (queries * 2);
    }
    KITTENS_DEVICE static constexpr int statistics_of(int buffer) {
        return buffer * buffer_bytes + statistics_at;
    }
    template <int which>
    KITTENS_DEVICE Tile<which> tile(int buffer) const {
        return {lds + (buffer * buffer_bytes + which * Tile<0>::bytes)};
    }
    template <int which>
    KITTENS_DEVICE auto& loads() {
        if constexpr (which)
            return do_loads;
        else
            return q_loads;
    }
    KITTENS_DEVICE static int later(int buffer, int steps) {
        if constexpr (buffers == 2) return buffer ^ steps;
        return buffer + steps < buffers ? buffer + steps : buffer + steps - buffers;
    }

    // A lane's operands in one of the buffers, and in dS.
    struct Buffer {
        shared_byte* lds;
        uint32_t row_major_at[2], transposed_at[2], ds_at_lane, shared_ds_at_lane;

        template <int which, int row, int col>
        KITTENS_DEVICE Fragment row_major() const {
            return lds_read<Fragment>(lds + stepped_offset<Tile<which>>(row_major_at[which], row, col) +
                                      which * Tile<0>::bytes);
        }
        template <int which, int row, int col>
        KITTENS_DEVICE Fragment transposed() const {
            return read_transposed<Tile<which>, T>(lds + which * Tile<0>::bytes, transposed_at[which], row, 8,
                                                   col);
        }
        template <int query, int key>
        KITTENS_DEVICE Fragment ds() const {
            return read_transposed<DsTile, T>(lds + ds_at, ds_at_lane, key, 4, query);
        }
        template <int key>
        KITTENS_DEVICE Fragment shared_ds() const {
            return read_transposed<DsTile, T>(lds + ds_at, shared_ds_at_lane, key, 4, 0);
        }
    };
    KITTENS_DEVICE Buffer buffer(int number, int ds_parity) const {
        const int at = number * buffer_bytes;
        return {lds,
                {row_major_at[0] + at, row_major_at[1] + at},
                {transposed_at[0] + at, transposed_at[1] + at},
                ds_of(ds_at_lane, ds_parity),
                ds_of(shared_ds_at_lane, ds_parity)};
    }
};

}  // namespace hipkittens::attention
