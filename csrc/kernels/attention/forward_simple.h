// kernels/attention/forward_simple.h: loads the next tile of keys and values, attends to the current one, barrier.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward_wave.h"

namespace hipkittens::attention {

template <ForwardConfig config>
struct SimpleForward : ForwardWave<config> {
    using Wave = ForwardWave<config>;
    using typename Wave::Keys, typename Wave::KeyTile, typename Wave::Scores, typename Wave::T,
        typename Wave::Values, typename Wave::ValueTile;
    using Wave::all, Wave::arguments, Wave::direct, Wave::keys, Wave::output, Wave::own, Wave::query,
        Wave::weights;
    static constexpr int buffers = direct ? 2 : 1;
    static constexpr int lds_bytes = buffers * (KeyTile::bytes + ValueTile::bytes);
    static_assert(lds_bytes <= target.lds_bytes, "the tiles in flight fit in LDS");
    static constexpr int waves_per_simd = config.waves / 4;

    shared_byte* lds;

    KITTENS_DEVICE SimpleForward(const typename Wave::Arguments& arguments, shared_byte* lds)
        : Wave(arguments), lds(lds) {}

    KITTENS_DEVICE KeyTile key_tile(int buffer) const { return {lds + buffer * KeyTile::bytes}; }
    KITTENS_DEVICE ValueTile value_tile(int buffer) const {
        return {lds + buffers * KeyTile::bytes + buffer * ValueTile::bytes};
    }

    KITTENS_DEVICE Scores mma_qk(KeyTile tile) const {
        typename Wave::template Product<keys> product;
        zero(product);
#pragma unroll
        for (int piece = 0; piece < Wave::pieces; ++piece) {
            typename Keys::Registers registers;
            load(registers, tile, 0, piece * Keys::step);
            mma_ABt(product, query[piece], registers, product);
        }
        return __builtin_bit_cast(Scores, product);
    }

    KITTENS_DEVICE void mma_pv(const Scores& scores, ValueTile tile) {
        constexpr int step = Values::step;
        using Probabilities = typename Wave::template Probabilities<step>;
#pragma unroll
        for (int j = 0; j < Scores::width; ++j) {
            Probabilities p;
            p.tiles[0][0] = narrowed<T>(scores.tiles[0][j]);
            typename Values::Registers registers;
            Values::read(registers, tile, j * step);
            Values::multiply(output, p, registers);
        }
    }

    KITTENS_DEVICE void attend(int key, int buffer) {
        Scores scores = mma_qk(key_tile(buffer));
        if constexpr (Wave::pointwise) {
            weights.weigh(scores);
            Wave::mask_scores(scores, key);
        } else {
            Wave::apply_terms(scores, key);
            Wave::mask_scores(scores, key);
            weights.raise_reference(scores, output);
            weights.exponentiate(scores);
        }
        if constexpr (config.dropout) Wave::drop(scores, key);
        mma_pv(scores, value_tile(buffer));
    }

    KITTENS_DEVICE void run() {
        int key = Wave::first_tile_key();
        if (key < all.past) {
            const auto k = Wave::keys_of(arguments.k, arguments.head_dim),
                       v = Wave::keys_of(arguments.v, arguments.value_dim);
            Keys key_loads;
            Values value_loads;
            key_loads.init_offsets(k.row_bytes(), arguments.head_dim);
            value_loads.loads.init_offsets(v.row_bytes());
            auto k_tiles = Wave::template tiles_of<typename Keys::Loads>(k);
            auto v_tiles = Wave::template tiles_of<typename Values::Loads>(v);
            auto issue = [&](int buffer) {
                key_loads.loads.issue_prepared(k_tiles.next(), key_tile(buffer));
                value_loads.loads.issue_prepared(v_tiles.next(), value_tile(buffer));
            };
            // After this, every wave may read the tiles whose loads were issued.
            auto wait_and_barrier = [&](int buffer) {
                if constexpr (direct) {
                    wait_vector_memory<0>();
                } else {
                    key_loads.loads.commit(key_tile(buffer));
                    value_loads.loads.commit(value_tile(buffer));
                }
                barrier();
            };
            issue(0);
            wait_and_barrier(0);
            int buffer = 0;
            for (; key < all.past; key += keys) {
                const bool more = key + keys < all.past;
                const int next = direct ? buffer ^ 1 : 0;
                if (more) issue(next);
                if (key + keys > own.first && key < own.past) attend(key, buffer);
                if (!more) break;
                if constexpr (!direct) barrier();
                wait_and_barrier(next);
                buffer = next;
            }
        }
        barrier();  // all waves have read the last tile
        Wave::template store<lds_bytes / config.waves>(lds + wave_id() * (lds_bytes / config.waves));
    }
};

}  // namespace hipkittens::attention
