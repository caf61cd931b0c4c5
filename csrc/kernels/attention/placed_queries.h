// kernels/attention/placed_queries.h: how gfx942 has the queries of a step in LDS, for the pass over a tile of keys.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward_tiles.h"

namespace hipkittens::attention {

// Rows of Q and of dO twice, as they lie for S and dP, and transposed for dK and dV: gfx942 cannot transpose while it reads. Half
// of the waves move Q, the others dO, each row loaded once. dS is exchanged with queries along the rows, for dQ.
template <class T, int queries, int head_dim, int keys, int waves>
struct PlacedQueries {
    // A row lies where its neighbours are those of a lane's registers (tile_key).
    using Straight = kittens::st<T, queries, head_dim, kittens::Access::rows>;
    using Turned = kittens::st<T, head_dim, queries, kittens::Access::rows_written_in_runs>;
    using SlopeTile = kittens::st<T, queries, keys, kittens::Access::rows>;
    using Moves =
        kittens::global_to_shared_both_ways<Straight, Turned, waves * kittens::wave_lanes / 2, tile_key>;
    template <class Tile>
    using Reader = kittens::base_tile_reader<T, kittens::row_l, kittens::rt_32x16, Tile>;
    using Fragment = kittens::vec<T, 8>;

    // Q and dO as they lie, then transposed, then dS.
    static constexpr int turned_at = 2 * Straight::bytes, slopes_at = turned_at + 2 * Turned::bytes,
                         bytes = slopes_at + SlopeTile::bytes;
    static constexpr int rows = Moves::rows, columns = Moves::cols;  // of a lane, on their way
    static constexpr int key_rows = 8;                               // whose swizzles differ

    kittens::shared_byte* lds;
    Reader<Straight> straight_reader;
    Reader<Turned> turned_reader;
    Reader<SlopeTile> slope_reader;
    uint32_t slope_at[key_rows];  // where a lane's key is in the first rows of dS
    Moves moves;
    Straight own_straight;
    Turned own_turned;

    // 0: Q, 1: dO.
    KITTENS_DEVICE static int which(int wave) { return wave >= waves / 2; }

    KITTENS_DEVICE explicit PlacedQueries(kittens::shared_byte* lds)
        : lds(lds),
          straight_reader(lds),
          turned_reader(lds + turned_at),
          // Waves lie side by side along a head's columns of dQ, then along the queries.
          slope_reader(lds + slopes_at + kittens::wave_id() / (head_dim / 32) * 32 * SlopeTile::row_bytes) {
        const int wave = kittens::wave_id(), lane = kittens::lane_id();
        own_straight = {lds + which(wave) * Straight::bytes};
        own_turned = {lds + turned_at + which(wave) * Turned::bytes};
        kittens::for_each_index<key_rows>([&](auto n) {
            slope_at[n.value] =
                slopes_at + SlopeTile::offset(lane / 32 * 8 + n.value, wave * (keys / waves) + lane % 32);
        });
    }
    KITTENS_DEVICE void init_offsets(int64_t row_bytes, int valid_cols) {
        moves.init_offsets(kittens::thread_id() % (waves * kittens::wave_lanes / 2), row_bytes, valid_cols);
    }

    template <int which, int row, int col>
    KITTENS_DEVICE Fragment straight() const {
        return straight_reader.template read<row, col, which * Straight::bytes>();
    }
    template <int which, int row, int col>
    KITTENS_DEVICE Fragment turned() const {
        return turned_reader.template read<col, row, which * Turned::bytes>();
    }
    template <int row, int key>
    KITTENS_DEVICE Fragment slopes() const {
        return slope_reader.template read<row, key>();
    }
    // Of the lane's key and a query of the lower half of the wave, or the one 8 further.
    template <int row>
    KITTENS_DEVICE void write_slope(T slope) const {
        static_assert(row % 16 < key_rows);
        kittens::lds_write(slope, lds + slope_at[row % 16] + row / 16 * 16 * SlopeTile::row_bytes);
    }
    KITTENS_DEVICE void clear_slopes() const {
        constexpr int step = waves * kittens::wave_lanes * kittens::b128_bytes;
        for (int at = kittens::thread_id() * kittens::b128_bytes; at < SlopeTile::bytes; at += step)
            kittens::lds_write(kittens::b128{}, lds + slopes_at + at);
    }

    // One load, permutation or write at a time.
    template <int row>
    KITTENS_DEVICE void issue(kittens::buffer source) {
        moves.template issue<row>(source);
    }
    template <int row>
    KITTENS_DEVICE void commit_row() const {
        moves.template commit_row<row>(own_straight);
    }
    template <int column>
    KITTENS_DEVICE void turn() {
        moves.template turn<column>();
    }
    template <int column>
    KITTENS_DEVICE void commit_column() const {
        moves.template commit_column<column>(own_turned);
    }
};

}  // namespace hipkittens::attention
