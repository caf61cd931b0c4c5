// kernels/attention/queries_through_registers.h: the queries of a step in the LDS of gfx942, for the loop over them.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward_tiles.h"

namespace hipkittens::attention {

// Q and dO are stored twice: row-major for S and dP, transposed for dK and dV, since gfx942 cannot transpose when reading. Each
// row is loaded once: a thread moves blocks of 4 rows by 8 columns. The first waves move Q, the others dO; what is left of dO,
// if it is narrower than Q, all waves move in blocks of 2 columns.
template <class T, int queries, int head_dim, int value_dim, int keys, int waves>
struct QueriesThroughRegisters {
    // The order of rows makes rows adjacent that are adjacent in a lane's registers (tile_key).
    using RowMajor = st<T, queries, tile_width(head_dim), Access::rows>;
    using Transposed = st<T, head_dim, queries, Access::rows_written_in_runs>;
    using DsTile = st<T, queries, keys, Access::rows>;
    using Loads = block_to_shared_both_ways<RowMajor, Transposed, 8, tile_key>;
    using RestLoads = block_to_shared_both_ways<RowMajor, Transposed, 2, tile_key>;
    // rest_at: the first column of dO that is left.
    static constexpr int row_blocks = queries / Loads::rows, columns_per_wave = wave_lanes / row_blocks * 8,
                         waves_of_q = head_dim / columns_per_wave,
                         rest_at = (waves - waves_of_q) * columns_per_wave;
    static constexpr bool has_rest = rest_at < value_dim;
    static_assert(waves_of_q * columns_per_wave == head_dim);
    static_assert(!has_rest || (value_dim - rest_at == 64 && row_blocks == 2 * waves));
    template <class Tile>
    using Reader = base_tile_reader<T, row_l, rt_32x16, Tile>;
    using Fragment = vec<T, 8>;

    // Q and dO row-major, then transposed, then dS.
    static constexpr int transposed_at = 2 * RowMajor::bytes,
                         ds_at = transposed_at + Transposed::bytes + value_dim * Transposed::row_bytes,
                         bytes = ds_at + DsTile::bytes;
    // Items per lane.
    static constexpr int rows = Loads::rows + has_rest * RestLoads::rows,
                         columns = Loads::cols + has_rest * RestLoads::cols;
    static constexpr int key_rows = 8;  // rows with different swizzles

    shared_byte* lds;
    Reader<RowMajor> row_major_reader;
    Reader<Transposed> transposed_reader;
    Reader<DsTile> ds_reader, shared_ds_reader;
    uint32_t ds_write_at[key_rows];  // for the lane's key in the first rows of dS
    Loads loads;
    RestLoads rest;
    // The tiles that the wave fills.
    RowMajor row_major_tile, rest_row_major_tile;
    Transposed transposed_tile, rest_transposed_tile;

    // 0: Q, 1: dO.
    KITTENS_DEVICE static int which(int wave) { return wave >= waves_of_q; }

    // shared_dq_key: the first of the keys that this wave multiplies for a shared tile of dQ.
    KITTENS_DEVICE explicit QueriesThroughRegisters(shared_byte* lds, int shared_dq_key)
        : lds(lds),
          row_major_reader(lds),
          transposed_reader(lds + transposed_at),
          // Waves are side by side along the head's columns of dQ, then along the queries.
          ds_reader(lds + ds_at + wave_id() / (head_dim / 32) * 32 * DsTile::row_bytes),
          shared_ds_reader(lds + ds_at + shared_dq_key * static_cast<int>(sizeof(T))) {
        const int wave = wave_id(), lane = lane_id();
        row_major_tile = {lds + which(wave) * RowMajor::bytes};
        transposed_tile = {lds + transposed_at + which(wave) * Transposed::bytes};
        rest_row_major_tile = {lds + RowMajor::bytes};
        rest_transposed_tile = {lds + transposed_at + Transposed::bytes};
        for_each_index<key_rows>([&](auto n) {
            ds_write_at[n.value] =
                ds_at + DsTile::offset(lane / 32 * 8 + n.value, wave * (keys / waves) + lane % 32);
        });
    }

    // Of the rows of this wave's tensor, and of dO; cols: of these tensors.
    KITTENS_DEVICE void init_offsets(int wave, int64_t row_bytes, int cols, int64_t do_row_bytes,
                                     int do_cols) {
        // Sixteen consecutive lanes, one phase of ds_write_b64, cover 8 columns that are 8 apart and two adjacent row blocks: with the
        // swizzle rows_written_in_runs they use all 32 banks.
        const int lane = lane_id(), thread = thread_id() - (which(wave) ? waves_of_q * wave_lanes : 0),
                  groups = (which(wave) ? rest_at : head_dim) / 64, group = thread / 16;
        const int row_block = lane / 8 % 2, col = lane % 8 * 8;
        loads.init_offsets({(group / groups * 2 + row_block) * Loads::rows, group % groups * 64 + col},
                           row_bytes, cols);
        // The two row blocks take different columns at a time: half a wave then writes four bytes to each bank of row-major rows.
        if constexpr (has_rest)
            rest.init_offsets({(wave * 2 + row_block) * RestLoads::rows,
                               rest_at + col + (lane / 16 ^ row_block * 2) * RestLoads::cols},
                              do_row_bytes, do_cols);
    }
    // Item n of each kind of work.
    template <int n, class Views>
    KITTENS_DEVICE void issue(const Views& views) {
        if constexpr (n < Loads::rows)
            loads.template issue<n>(views[0]);
        else
            rest.template issue<n - Loads::rows>(views[1]);
    }
    template <int n>
    KITTENS_DEVICE void commit_row() const {
        if constexpr (n < Loads::rows)
            loads.template commit_row<n>(row_major_tile);
        else
            rest.template commit_row<n - Loads::rows>(rest_row_major_tile);
    }
    template <int n>
    KITTENS_DEVICE void transpose_column() {
        if constexpr (n < Loads::cols)
            loads.template transpose_column<n>();
        else
            rest.template transpose_column<n - Loads::cols>();
    }
    template <int n>
    KITTENS_DEVICE void commit_column() const {
        if constexpr (n < Loads::cols)
            loads.template commit_column<n>(transposed_tile);
        else
            rest.template commit_column<n - Loads::cols>(rest_transposed_tile);
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
    template <int key>
    KITTENS_DEVICE Fragment shared_ds() const {
        return shared_ds_reader.template read<0, key>();
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
