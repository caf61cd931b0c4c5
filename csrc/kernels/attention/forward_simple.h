// kernels/attention/forward_simple.h: load the next tile of keys and values, attend to this one, meet.
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
        Wave::softmax;
    static constexpr int buffers = direct ? 2 : 1;
    static constexpr int lds_bytes = buffers * (KeyTile::bytes + ValueTile::bytes);
    static_assert(lds_bytes <= kittens::target.lds_bytes, "the tiles under way fit in LDS");

    kittens::shared_byte* lds;

    KITTENS_DEVICE SimpleForward(const ForwardArguments& arguments, kittens::shared_byte* lds)
        : Wave(arguments), lds(lds) {}

    KITTENS_DEVICE KeyTile key_tile(int buffer) const { return {lds + buffer * KeyTile::bytes}; }
    KITTENS_DEVICE ValueTile value_tile(int buffer) const {
        return {lds + buffers * KeyTile::bytes + buffer * ValueTile::bytes};
    }

    KITTENS_DEVICE void score(Scores& scores, KeyTile tile) {
        typename Wave::template Product<keys> product;
        zero(product);
#pragma unroll
        for (int piece = 0; piece < Wave::pieces; ++piece) {
            typename Keys::Registers registers;
            load(registers, tile, 0, piece * Keys::step);
            mma_ABt(product, query[piece], registers, product);
        }
        Wave::template place_scores<0>(scores, product);
    }

    KITTENS_DEVICE void weigh(const Scores& scores, ValueTile tile) {
        constexpr int step = Values::step;
        using Probabilities = typename Wave::template Probabilities<step>;
#pragma unroll
        for (int j = 0; j < Scores::width; ++j) {
            Probabilities p;
            p.tiles[0][0] = kittens::narrowed<T>(scores.tiles[0][j]);
            typename Values::Registers registers;
            Values::read(registers, tile, j * step);
            Values::multiply(output, p, registers);
        }
    }

    KITTENS_DEVICE void attend(int key, int buffer) {
        Scores scores;
        score(scores, key_tile(buffer));
        Wave::hide(scores, key);
        softmax.follow(scores, output);
        softmax.template exponentiate<0, Scores::width>(scores);
        if constexpr (config.dropout) Wave::drop(scores, key);
        weigh(scores, value_tile(buffer));
    }

    KITTENS_DEVICE void run() {
        int key = Wave::first_tile_key();
        if (key < all.past) {
            const auto k = Wave::keys_of(arguments.k), v = Wave::keys_of(arguments.v);
            Keys key_loads;
            Values value_loads;
            key_loads.init_offsets(k.row_bytes(), arguments.head_dim);
            value_loads.loads.init_offsets(v.row_bytes());
            kittens::global_window k_window = k.window(key, 0), v_window = v.window(key, 0);
            auto issue = [&](int buffer) {
                key_loads.loads.issue(k_window.view(), key_tile(buffer));
                value_loads.loads.issue(v_window.view(), value_tile(buffer));
                k_window.advance(keys * k.row_bytes());
                v_window.advance(keys * v.row_bytes());
            };
            // After it every wave may read the tiles whose loads were begun.
            auto settle = [&](int buffer) {
                if constexpr (direct) {
                    kittens::wait_vector_memory<0>();
                } else {
                    key_loads.loads.commit(key_tile(buffer));
                    value_loads.loads.commit(value_tile(buffer));
                }
                kittens::barrier();
            };
            issue(0);
            settle(0);
            int buffer = 0;
            for (; key < all.past; key += keys) {
                const bool more = key + keys < all.past;
                const int next = direct ? buffer ^ 1 : 0;
                if (more) issue(next);
                if (key + keys > own.first && key < own.past) attend(key, buffer);
                if (!more) break;
                if constexpr (!direct) kittens::barrier();
                settle(next);
                buffer = next;
            }
        }
        kittens::barrier();  // everyone has read the last tile
        Wave::template store<lds_bytes / config.waves>(lds + kittens::wave_id() * (lds_bytes / config.waves));
    }
};

}  // namespace hipkittens::attention
