// kernels/paged_attention/latent.h: attention over a cache of latents and rotary keys, whose values are the latents.
// SPDX-License-Identifier: MIT
#pragma once
#include "join_waves.h"
#include "latent_row.h"
#include "query_rows.h"

namespace hipkittens::paged_attention {

// A row of the cache is loaded once: as a key it goes through LDS, band by band, and as a value it stays in registers. Bands of the
// next tile are loaded as soon as those of this tile have been accumulated, so that loads are in flight while scores are computed.
template <PagedConfig config>
struct Latent : QueryRows<config> {
    using Base = QueryRows<config>;
    using Base::arguments, Base::bounds, Base::output, Base::q, Base::softmax;
    using typename Base::Cached, typename Base::T;
    static_assert(config.row_tiles == 1 && config.head_dim == latent_dim + rotary_dim);
    static constexpr int outputs = Base::outputs, band_dim = 128, bands = latent_dim / band_dim;
    using BandKeys = KeyTile<T, band_dim>;
    using RotaryKeys = KeyTile<T, rotary_dim>;
    using Band = TileRows<Cached, band_dim>;
    using Row = LatentRow<config>;
    using Rotary = TileRows<typename Row::RotaryElement, rotary_dim>;
    static constexpr int waves_per_simd = 1;
    // Bands alternate in LDS: while one is read, the next one is written.
    static constexpr int places = target.lds_bytes > 65536 ? bands : 2,
                         wave_key_bytes = places * BandKeys::bytes;
    static constexpr int key_bytes = waves * wave_key_bytes, join_portions = 2,
                         join_bytes = waves / 2 * wave_bytes<1, outputs / join_portions>,
                         lds_bytes = key_bytes > join_bytes ? key_bytes : join_bytes;

    // Quantized values are widened when used; those with embedded scales are widened once, for both uses.
    using Values = TileRows<typename choice<Row::has_scales, T, Cached>::type, band_dim>;
    // A lane has the scales of two bands.
    static constexpr int bands_of_lane = 2;

    Band latents[bands];
    Rotary rotary;
    RowScales<bands_of_lane> scales;

    using Base::Base;

    KITTENS_DEVICE static void run(const PagedArguments& arguments, shared_byte* lds) {
        Latent latent(arguments);
        if (!latent.begin()) return;
        latent.attend(lds + wave_id() * wave_key_bytes);
        barrier();
        join_waves<waves, join_portions>(latent.softmax, latent.output, lds);
        if (wave_id() == 0) latent.store();
    }

    // `lds`: belongs to the wave alone.
    KITTENS_DEVICE void attend(shared_byte* lds) {
        if (bounds.last < bounds.first) return;
        const int32_t* table = this->table();
        const auto data = (global<const char>)arguments.k.data;
        constexpr int step = waves * tile_keys;
        int tile = bounds.first / tile_keys * tile_keys + wave_id() * tile_keys;
        if (tile > bounds.last) return;
        KeyPages pages;
        global<const char> row, addresses[lane_keys];
        const auto find = [&] KITTENS_INLINE(int of) {
            row = pages.row(arguments, arguments.k, data, of, bounds);
            KeyPages::rows_of_16(addresses, row);
        };
        pages.look_up(arguments, table, tile, bounds);
        find(tile);
        pages.look_up(arguments, table, tile + step, bounds);
        if constexpr (Row::has_scales) load_scales(row);
        load_rotary(addresses);
#pragma unroll
        for (int band = 0; band < bands; ++band) load_band(band, addresses);
        for (;;) {
            // After the last tile, all lanes load the last key: after a branch, the number of loads in flight would be unknown.
            vec<float, 4> products[2] = {};
            RotaryKeys::put(rotary, lds + (places - 1) * BandKeys::bytes);
            multiply<RotaryKeys>(products, lds + (places - 1) * BandKeys::bytes, bands * BandKeys::steps);
            find(tile + step);
            pages.look_up(arguments, table, tile + 2 * step, bounds);
            if constexpr (Row::has_scales) {
                scales.take();
                load_scales(row);
            }
            load_rotary(addresses);
            Values values[bands];
            for_each_index<bands>([&](auto band) KITTENS_INLINE {
                shared_byte* const place = lds + band.value % places * BandKeys::bytes;
                values[band.value] = values_of<band.value>();
                BandKeys::put(values[band.value], place);
                multiply<BandKeys>(products, place, band.value * BandKeys::steps);
            });
            vec<float, 8> scores = __builtin_shufflevector(products[0], products[1], 0, 1, 2, 3, 4, 5, 6, 7);
            this->edit(scores, 0, tile + first_key_of_lane());
            softmax[0].exponentiate(scores, output[0]);
            const vec<T, 8> p = __builtin_convertvector(scores, vec<T, 8>);
#pragma unroll
            for (int band = 0; band < bands; ++band) {
                add(values[band], band, p);
                load_band(band, addresses);
            }
            tile += step;
            if (tile > bounds.last) return;
        }
    }

    // Loads must be issued at this point; without the fences, the compiler would move them to their uses.
    KITTENS_DEVICE void load_rotary(const global<const char> (&addresses)[lane_keys]) {
        global<const char> behind[lane_keys];
#pragma unroll
        for (int n = 0; n < lane_keys; ++n) behind[n] = addresses[n] + Row::rotary_at;
        compiler_fence();
        rotary.load(behind);
        compiler_fence();
    }
    // `row`: of the lane's own key.
    KITTENS_DEVICE void load_scales(global<const char> row) {
        constexpr int bytes = bands_of_lane * static_cast<int>(sizeof(float));
        scales.load(row + Row::scales_at + lane_id() % 16 / lane_keys * bytes);
    }
    KITTENS_DEVICE void load_band(int band, const global<const char> (&addresses)[lane_keys]) {
        global<const char> at[lane_keys];
#pragma unroll
        for (int n = 0; n < lane_keys; ++n)
            at[n] = addresses[n] + band * band_dim * static_cast<int>(sizeof(Cached));
        compiler_fence();
        latents[band].load(at);
        compiler_fence();
    }

    template <class Keys>
    KITTENS_DEVICE void multiply(vec<float, 4> (&products)[2], shared_byte* keys, int first_step) const {
#pragma unroll
        for (int step = 0; step < Keys::steps; ++step)
#pragma unroll
            for (int n = 0; n < 2; ++n)
                products[n] =
                    matrix_16x16(Keys::operand(keys, n, step), q[0][first_step + step], products[n]);
    }
    template <int band>
    KITTENS_DEVICE Values values_of() const {
        if constexpr (Row::has_scales)
            return scales.template times<T, band / bands_of_lane * lane_keys>(latents[band],
                                                                              band % bands_of_lane);
        else
            return latents[band];
    }
    KITTENS_DEVICE void add(const Values& values, int band, const vec<T, 8>& p) {
        const ValueBand<T, Band::columns> operands(values, 0);
#pragma unroll
        for (int column = 0; column < Band::columns; ++column) {
            vec<float, 4>& sum = output[0][band * Band::columns + column];
            sum = matrix_16x16(operands[column], p, sum);
        }
    }
};

}  // namespace hipkittens::paged_attention
