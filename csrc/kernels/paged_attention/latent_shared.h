// kernels/paged_attention/latent_shared.h: attention over a cache of latents, with rows in LDS shared by all waves of a workgroup.
// SPDX-License-Identifier: MIT
#pragma once
#include "latent_row.h"
#include "query_rows.h"

namespace hipkittens::paged_attention {

// Each wave has its own 16 rows. All waves iterate over the same keys: a wave loads a quarter of each tile (a band of the latents and a
// quarter of the rotary keys) and writes it to LDS, where every wave reads the tile twice, as keys and as values.
template <PagedConfig config>
struct LatentShared : QueryRows<config, true> {
    using Base = QueryRows<config, true>;
    using Base::arguments, Base::bounds, Base::output, Base::q, Base::softmax;
    using typename Base::Cached, typename Base::T;
    static_assert(config.row_tiles == waves && config.head_dim == latent_dim + rotary_dim);
    static constexpr int band_dim = latent_dim / waves;
    using BandKeys = KeyTile<T, band_dim>;
    using RotaryKeys = KeyTile<T, rotary_dim>;
    using Band = TileRows<Cached, band_dim>;
    using Row = LatentRow<config>;
    static constexpr int waves_per_simd = 1;
    // The part of a rotary key that a lane loads: 8 lanes share a key.
    static constexpr int rotary_lanes = 8, rotary_columns = rotary_dim / rotary_lanes;
    static_assert(wave_lanes / rotary_lanes * waves == tile_keys);
    using RotaryColumns = vec<typename Row::RotaryElement, rotary_columns>;
    // While one tile is read, the next one is written, if LDS has room for two.
    static constexpr int tile_bytes = waves * BandKeys::bytes + RotaryKeys::bytes,
                         tiles = target.lds_bytes >= 2 * tile_bytes ? 2 : 1, lds_bytes = tiles * tile_bytes;

    KeyPages pages;
    Band band;
    RotaryColumns rotary;
    RowScales<1> scales;  // of the wave's band

    using Base::Base;

    KITTENS_DEVICE static void run(const PagedArguments& arguments, shared_byte* lds) {
        LatentShared latent(arguments);
        if (!latent.begin()) return;
        latent.attend(lds);
        latent.store();
    }

    // The key in the tile whose rotary features the lane loads.
    KITTENS_DEVICE static int rotary_key() { return (wave_id() * wave_lanes + lane_id()) / rotary_lanes; }
    KITTENS_DEVICE void look_up(int tile) { pages.look_up(arguments, this->table(), tile, bounds); }
    // Loads from the pages found by look_up. Loads must be issued at this point.
    KITTENS_DEVICE void load(int tile) {
        const auto row =
            pages.row(arguments, arguments.k, (global<const char>)arguments.k.data, tile, bounds);
        global<const char> addresses[lane_keys];
        KeyPages::rows_of_16(addresses, row + wave_id() * band_dim * static_cast<int>(sizeof(Cached)));
        // A wave loads the rotary features of the 8 keys whose rows are in its lanes from 16 x its index on.
        const auto rotary_row = read_lane(row, wave_id() * 16 + lane_id() / rotary_lanes);
        if constexpr (Row::has_scales)
            scales.load(row + Row::scales_at + wave_id() * static_cast<int>(sizeof(float)));
        compiler_fence();
        band.load(addresses);
        rotary = load_at<RotaryColumns>(rotary_row + Row::rotary_at +
                                        lane_id() % rotary_lanes * static_cast<int>(sizeof(RotaryColumns)));
        compiler_fence();
    }
    KITTENS_DEVICE void put(shared_byte* lds) {
        shared_byte* const place = lds + wave_id() * BandKeys::bytes;
        if constexpr (Row::has_scales) {
            scales.take();
            BandKeys::put(scales.template times<T, 0>(band, 0), place);
        } else {
            BandKeys::put(band, place);
        }
        const int key = rotary_key();
        lds_write(widened<T>(rotary),
                  lds + waves * BandKeys::bytes + key * RotaryKeys::row_bytes +
                      RotaryKeys::place(lane_id() % rotary_lanes, RotaryKeys::row_of(key)));
    }

    KITTENS_DEVICE void attend(shared_byte* lds) {
        if (bounds.last < bounds.first) return;
        int tile = bounds.first / tile_keys * tile_keys, place = 0;
        look_up(tile);
        load(tile);
        look_up(tile + tile_keys);
        put(lds);
        for (;;) {
            barrier();
            // After the last tile, all lanes load the last key: after a branch, the number of loads in flight would be unknown.
            load(tile + tile_keys);
            look_up(tile + 2 * tile_keys);
            shared_byte* const keys = lds + place;
            vec<float, 4> products[2] = {};
            multiply(products, keys);
            vec<float, 8> scores = __builtin_shufflevector(products[0], products[1], 0, 1, 2, 3, 4, 5, 6, 7);
            this->edit(scores, 0, tile + first_key_of_lane());
            softmax[0].exponentiate(scores, output[0]);
            const vec<T, 8> p = __builtin_convertvector(scores, vec<T, 8>);
            add(keys, p);
            tile += tile_keys;
            if (tile > bounds.last) return;
            if constexpr (tiles == 1)
                barrier();
            else
                place = tile_bytes - place;
            put(lds + place);
        }
    }

    // LDS latency is long, so the operands of a band are read before the products of the preceding band.
    template <class Keys>
    KITTENS_DEVICE static void read(vec<T, 8> (&operands)[BandKeys::steps][2], shared_byte* keys) {
#pragma unroll
        for (int step = 0; step < Keys::steps; ++step)
#pragma unroll
            for (int n = 0; n < 2; ++n) operands[step][n] = Keys::operand(keys, n, step);
    }
    KITTENS_DEVICE void multiply(vec<float, 4> (&products)[2], shared_byte* keys) const {
        vec<T, 8> operands[2][BandKeys::steps][2];
        read<BandKeys>(operands[0], keys);
#pragma unroll
        for (int b = 0; b <= waves; ++b) {
            if (b + 1 < waves)
                read<BandKeys>(operands[(b + 1) % 2], keys + (b + 1) * BandKeys::bytes);
            else if (b + 1 == waves)
                read<RotaryKeys>(operands[(b + 1) % 2], keys + waves * BandKeys::bytes);
            schedule_fence();
#pragma unroll
            for (int step = 0; step < (b < waves ? BandKeys::steps : RotaryKeys::steps); ++step)
#pragma unroll
                for (int n = 0; n < 2; ++n)
                    products[n] =
                        matrix_16x16(operands[b % 2][step][n], q[0][b * BandKeys::steps + step], products[n]);
        }
    }
    KITTENS_DEVICE void add(shared_byte* keys, const vec<T, 8>& p) {
        constexpr int columns = Band::columns;
        TileRows<T, band_dim> rows[2];
        BandKeys::get(rows[0], keys);
#pragma unroll
        for (int b = 0; b < waves; ++b) {
            if (b + 1 < waves) BandKeys::get(rows[(b + 1) % 2], keys + (b + 1) * BandKeys::bytes);
            schedule_fence();
            const ValueBand<T, columns> operands(rows[b % 2], 0);
#pragma unroll
            for (int column = 0; column < columns; ++column) {
                vec<float, 4>& sum = output[0][b * columns + column];
                sum = matrix_16x16(operands[column], p, sum);
            }
        }
    }
};

}  // namespace hipkittens::paged_attention
