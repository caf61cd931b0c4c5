// kernels/attention/queries_through_registers.h: the queries of a step in the LDS of gfx942, for the loop over them.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward_tiles.h"

namespace hipkittens::attention {

// Q and dO are stored twice: row-major for S and dP, transposed for dK and dV, since gfx942 cannot transpose when reading.
// Half of the waves move Q, the other half dO, and each row is loaded once. dS has queries along its rows, for dQ.
template <class T, int queries, int head_dim, int keys, int waves>
struct QueriesThroughRegisters {
    // The order of rows makes rows adjacent that are adjacent in a lane's registers (tile_key).
    using RowMajor = st<T, queries, head_dim, Access::rows>;
    using Transposed = st<T, head_dim, queries, Access::rows_written_in_runs>;
    using DsTile = st<T, queries, keys, Access::rows>;
    using Loads = global_to_shared_both_ways<RowMajor, Transposed, waves * wave_lanes / 2, tile_key>;
    template <class Tile>
    using Reader = base_tile_reader<T, row_l, rt_32x16, Tile>;
    using Fragment = vec<T, 8>;

    // Q and dO row-major, then transposed, then dS.
    static constexpr int transposed_at = 2 * RowMajor::bytes, ds_at = transposed_at + 2 * Transposed::bytes,
                         bytes = ds_at + DsTile::bytes;
    static constexpr int rows = Loads::rows, columns = Loads::cols;  // items per lane
    static constexpr int key_rows = 8;                               // rows with different swizzles

    shared_byte* lds;
    Reader<RowMajor> row_major_reader;
    Reader<Transposed> transposed_reader;
    Reader<DsTile> ds_reader;
    uint32_t ds_write_at[key_rows];  // for the lane's key in the first rows of dS
    Loads loads;
    // The tiles that the wave fills.
    RowMajor row_major_tile;
    Transposed transposed_tile;

    // 0: Q, 1: dO.
    KITTENS_DEVICE static int which(int wave) { return wave >= waves / 2; }

    KITTENS_DEVICE explicit QueriesThroughRegisters(shared_byte* lds)
        : lds(lds),
          row_major_reader(lds),
          transposed_reader(lds + transposed_at),
          // Waves are side by side along the head's columns of dQ, then along the queries.
          ds_reader(lds + ds_at + wave_id() / (head_dim / 32) * 32 * DsTile::row_bytes) {
        const int wave = wave_id(), lane = lane_id();
        row_major_tile = {lds + which(wave) * RowMajor::bytes};
        transposed_tile = {lds + transposed_at + which(wave) * Transposed::bytes};
        for_each_index<key_rows>([&](auto n) {
            ds_write_at[n.value] =
                ds_at + DsTile::offset(lane / 32 * 8 + n.value, wave * (keys / waves) + lane % 32);
        });
    }

    template <int which, int row, int col>
    KITTENS_DEVICE Fragment row_major() const {
        return row_major_reader.template read<row, col, which * RowMajor::bytes>();
    }
    template <int which, int row, int col>
    KITTENS_DEVICE Fragment transposed() const {
        return transposed_reader.template read<col, row, which * Transposed::bytes>();
    }
    template <int query, int key>
    KITTENS_DEVICE Fragment ds() const {
        return ds_reader.template read<query, key>();
    }
    // For the lane's key and a query of the lower half of the wave, or the query 8 further.
    template <int query>
    KITTENS_DEVICE void write_ds(T value) const {
        static_assert(query % 16 < key_rows);
        lds_write(value, lds + ds_write_at[query % 16] + query / 16 * 16 * DsTile::row_bytes);
    }
    KITTENS_DEVICE void clear_ds() const {
        constexpr int step = waves * wave_lanes * b128_bytes;
        for (int at = thread_id() * b128_bytes; at < DsTile::bytes; at += step)
            lds_write(b128{}, lds + ds_at + at);
    }
};

}  // namespace hipkittens::attention
