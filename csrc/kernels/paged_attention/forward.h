// kernels/paged_attention/forward.h: attention over caches of keys and values.
// SPDX-License-Identifier: MIT
#pragma once
#include "grouped_tile.h"
#include "join_waves.h"
#include "key_scales.h"
#include "query_rows.h"

namespace hipkittens::paged_attention {

// What a wave loads of a tile.
template <bool grouped, class Cached, int head_dim>
struct TileOf {
    using Keys = TileRows<Cached, head_dim>;
    using Values = TileRows<Cached, head_dim>;
};
template <class Cached, int head_dim>
struct TileOf<true, Cached, head_dim> {
    using Keys = GroupedKeys<Cached, head_dim>;
    using Values = GroupedValues<Cached, head_dim>;
};

template <PagedConfig config>
struct Forward : QueryRows<config> {
    using Base = QueryRows<config>;
    using Base::arguments, Base::bounds, Base::key_head, Base::output, Base::q, Base::row_tiles,
        Base::sequence, Base::softmax;
    using typename Base::Cached, typename Base::T;
    static constexpr int head_dim = config.head_dim, outputs = Base::outputs;
    static constexpr bool scales_by_key = config.scaling == CacheScaling::by_key;
    using Keys = KeyTile<T, head_dim>;
    using Tile = TileOf<config.grouped, Cached, head_dim>;
    static constexpr int waves_per_simd = head_dim * row_tiles > 128 ? 1 : 2;
    // The waves are joined after all reads of keys.
    static constexpr int key_bytes = waves * Keys::bytes,
                         join_bytes = waves / 2 * wave_bytes<row_tiles, outputs>,
                         lds_bytes = key_bytes > join_bytes ? key_bytes : join_bytes;

    using Base::Base;

    KITTENS_DEVICE static void run(const PagedArguments& arguments, shared_byte* lds) {
        Forward forward(arguments);
        if (!forward.begin()) return;
        forward.attend(lds + wave_id() * Keys::bytes);
        barrier();
        join_waves<waves, 1>(forward.softmax, forward.output, lds);
        if (wave_id() == 0) forward.store();
    }

    // `lds`: belongs to the wave alone.
    KITTENS_DEVICE void attend(shared_byte* lds) {
        if (bounds.last < bounds.first) return;
        const int32_t* table = this->table();
        const auto k = (global<const char>)arguments.k.data + key_head * arguments.k.head_bytes,
                   v = (global<const char>)arguments.v.data + key_head * arguments.v.head_bytes;
        constexpr int step = waves * tile_keys;
        int tile = bounds.first / tile_keys * tile_keys + wave_id() * tile_keys;
        if (tile > bounds.last) return;
        KeyPages pages;
        typename Tile::Keys keys;
        typename Tile::Values values;
        KeyScales scales(arguments, key_head);
        pages.look_up(arguments, table, tile, bounds);
        if constexpr (scales_by_key) {
            scales.load(pages, arguments, tile, bounds);
            compiler_fence();
        }
        const auto load_keys = [&] KITTENS_INLINE(int of) {
            keys.load(Tile::Keys::begin(pages, arguments, arguments.k, k, of, bounds), arguments.k);
        };
        load_keys(tile);
        const auto load_values = [&] KITTENS_INLINE {
            const auto begin = Tile::Values::begin(pages, arguments, arguments.v, v, tile, bounds);
            pages.look_up(arguments, table, tile + step, bounds);
            // Loads return in order, and the next pages are waited for before these values. Loads must be issued at this point;
            // without the fences, the compiler would move them to their uses.
            compiler_fence();
            values.load(begin, arguments.v);
            compiler_fence();
        };
        load_values();
        for (;;) {
            Keys::put(keys, lds);
            if constexpr (scales_by_key) scales.take();
            compiler_fence();
            if constexpr (scales_by_key) {
                scales.load(pages, arguments, tile + step, bounds);
                compiler_fence();
            }
            // Also after the last tile, where all lanes load the last key: after a branch, the number of loads in flight would be unknown.
            load_keys(tile + step);
            compiler_fence();
            vec<float, 8> scores[row_tiles];
            multiply(scores, lds);
            // Scaled weights are split into two parts. Without scales a single part is enough: the weight of a key that has all of a
            // row's weight is a power of two, which rounding does not change.
            vec<T, 8> p[row_tiles][scales_by_key ? 2 : 1];
            vec<float, 8> value_scales;
            if constexpr (scales_by_key) value_scales = scales.template of_values<T>(output);
#pragma unroll
            for (int r = 0; r < row_tiles; ++r) {
                if constexpr (scales_by_key) scores[r] *= scales.of_keys();
                this->edit(scores[r], r, tile + first_key_of_lane());
                softmax[r].exponentiate(scores[r], output[r]);
                if constexpr (scales_by_key) scores[r] *= value_scales;
                p[r][0] = __builtin_convertvector(scores[r], vec<T, 8>);
                if constexpr (scales_by_key)
                    p[r][1] = __builtin_convertvector(
                        scores[r] - __builtin_convertvector(p[r][0], vec<float, 8>), vec<T, 8>);
            }
            if constexpr (config.grouped) values.mask(tile, bounds);
            add(values, p);
            tile += step;
            if (tile > bounds.last) break;
            load_values();
        }
        if constexpr (scales_by_key)
#pragma unroll
            for (int r = 0; r < row_tiles; ++r)
#pragma unroll
                for (int n = 0; n < outputs; ++n) output[r][n] *= scales.template unit<T>();
    }

    // The lane's scores: those of 8 consecutive keys.
    KITTENS_DEVICE void multiply(vec<float, 8> (&scores)[row_tiles], shared_byte* keys) const {
        vec<float, 4> products[row_tiles][2] = {};
#pragma unroll
        for (int step = 0; step < Base::steps; ++step)
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const vec<T, 8> operand = Keys::operand(keys, n, step);
#pragma unroll
                for (int r = 0; r < row_tiles; ++r)
                    products[r][n] = matrix_16x16(operand, q[r][step], products[r][n]);
            }
#pragma unroll
        for (int r = 0; r < row_tiles; ++r)
            scores[r] = __builtin_shufflevector(products[r][0], products[r][1], 0, 1, 2, 3, 4, 5, 6, 7);
    }
    template <int parts>
    KITTENS_DEVICE void add(const GroupedValues<Cached, head_dim>& values,
                            const vec<T, 8> (&p)[row_tiles][parts]) {
#pragma unroll
        for (int n = 0; n < outputs; ++n) add(n, widened<T>(values.features[n]), p);
    }
    template <int parts>
    KITTENS_DEVICE void add(const TileRows<Cached, head_dim>& values,
                            const vec<T, 8> (&p)[row_tiles][parts]) {
        using Rows = TileRows<Cached, head_dim>;
#pragma unroll
        for (int band = 0; band < Rows::bands; ++band) {
            ValueBand<T, Rows::columns> operands(values, band);
#pragma unroll
            for (int column = 0; column < Rows::columns; ++column)
                add(band * Rows::columns + column, operands[column], p);
        }
    }
    template <int parts>
    KITTENS_DEVICE void add(int n, const vec<T, 8>& operand, const vec<T, 8> (&p)[row_tiles][parts]) {
#pragma unroll
        for (int r = 0; r < row_tiles; ++r)
#pragma unroll
            for (int part = 0; part < parts; ++part)
                output[r][n] = matrix_16x16(operand, p[r][part], output[r][n]);
    }
};

}  // namespace hipkittens::paged_attention
