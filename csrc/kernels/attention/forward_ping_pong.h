// kernels/attention/forward_ping_pong.h: eight waves in two groups; the scores of the next tile while this one is weighed.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward_wave.h"

namespace hipkittens::attention {

// Step i multiplies queries by the keys of tile i + 1 while it exponentiates the scores of tile i (phases 0 and 1, half
// a tile each), then weighs the values of tile i (phases 2 and 3). Only behind that the reference of the softmax follows
// the new scores: everything exponentiated against the old one is in the output before the output is rescaled.
template <ForwardConfig config>
struct PingPongForward : ForwardWave<config> {
    using Wave = ForwardWave<config>;
    using typename Wave::Keys, typename Wave::KeyTile, typename Wave::Scores, typename Wave::T,
        typename Wave::Values, typename Wave::ValueTile;
    using Wave::all, Wave::arguments, Wave::direct, Wave::keys, Wave::output, Wave::query, Wave::softmax;
    static_assert(config.waves == 8, "ping-pong is a schedule of eight waves");
    static_assert(!config.dropout, "only the simple schedule drops weights");
    static constexpr int buffers = direct ? 2 : 1;
    static constexpr int lds_bytes = buffers * (KeyTile::bytes + ValueTile::bytes);
    static_assert(lds_bytes <= kittens::target.lds_bytes, "the tiles under way fit in LDS");

    static constexpr int phases = 4, half = keys / 2;
    using KeyRegisters = typename Keys::template Piece<half, Keys::step>;
    using ValueRegisters = typename Values::template Piece<half>;
    using Powers = typename Wave::template Powers<half>;

    // Step i begins to load the values of tile i + 1 in phase 0 and the keys of tile i + 3 in phase 2.
    struct DirectLoads {
        static constexpr int outstanding_after(int phase) {
            constexpr kittens::Pipeline<2> pipeline{
                phases, {{0, 2, 1, Values::Loads::loads_per_wave}, {2, 0, 2, Keys::Loads::loads_per_wave}}};
            return pipeline.outstanding_after(phase);
        }
    };

    kittens::shared_byte* lds;
    Keys key_loads;
    Values value_loads;
    kittens::global_window k_window, v_window;
    int64_t k_step, v_step;
    int keys_left, values_left;  // tiles not yet begun to load
    KeyRegisters key_registers[Wave::pieces];
    ValueRegisters value_registers;
    Scores scores[2];
    Powers powers[2];

    KITTENS_DEVICE PingPongForward(const ForwardArguments& arguments, kittens::shared_byte* lds)
        : Wave(arguments), lds(lds) {}

    KITTENS_DEVICE KeyTile key_tile(int buffer) const { return {lds + buffer % buffers * KeyTile::bytes}; }
    KITTENS_DEVICE ValueTile value_tile(int buffer) const {
        return {lds + buffers * KeyTile::bytes + buffer % buffers * ValueTile::bytes};
    }
    // Past the last tile the buffer is empty: its loads touch no memory but count like any other, so waits stay the same
    // to the end.
    KITTENS_DEVICE static kittens::buffer next_view(kittens::global_window& window, int64_t step, int& left) {
        kittens::buffer view = window.view();
        if (left <= 0) view.bytes = 0;
        --left;
        window = {window.base + kittens::opaque_scalar(step),
                  kittens::opaque_scalar(window.remaining - step)};
        return view;
    }
    KITTENS_DEVICE void fetch_keys(int buffer) {
        key_loads.loads.fetch(next_view(k_window, k_step, keys_left), key_tile(buffer));
    }
    KITTENS_DEVICE void fetch_values(int buffer) {
        value_loads.loads.fetch(next_view(v_window, v_step, values_left), value_tile(buffer));
    }

    KITTENS_DEVICE void read_keys(KeyTile tile, int first) {
#pragma unroll
        for (int piece = 0; piece < Wave::pieces; ++piece)
            load(key_registers[piece], tile, first, piece * Keys::step);
    }
    template <int first>
    KITTENS_DEVICE void score(Scores& destination) {
        typename Wave::template Product<half> product;
        zero(product);
#pragma unroll
        for (int piece = 0; piece < Wave::pieces; ++piece)
            mma_ABt(product, query[piece], key_registers[piece], product);
        Wave::template place_scores<first>(destination, product);
    }
    template <int part>
    KITTENS_DEVICE void exponentiate(Scores& source) {
        softmax.template exponentiate<part * Powers::width, Powers::width>(source);
#pragma unroll
        for (int j = 0; j < Powers::width; ++j)
            powers[part].tiles[0][j] =
                __builtin_convertvector(source.tiles[0][part * Powers::width + j], typename Powers::fragment);
    }

    // Tile i begins at `key`; parity is that of i. `more`: is there a tile i + 1?
    template <int parity>
    KITTENS_DEVICE void step(int key, bool more) {
        Scores &current = scores[parity], &next = scores[1 - parity];
        using Loads = kittens::choose<direct, DirectLoads, NoWaits>;
        kittens::ping_pong_phases<phases>(
            [&](auto phase) {
                if constexpr (phase.value < 2) read_keys(key_tile(1 - parity), phase.value * half);
                if constexpr (phase.value >= 2)
                    Values::read(value_registers, value_tile(parity), (phase.value - 2) * half);
                if constexpr (phase.value == 0) {
                    if constexpr (!direct) value_loads.loads.place(value_tile(0));
                    fetch_values(1 - parity);
                }
                if constexpr (phase.value == 2) {
                    if constexpr (!direct) key_loads.loads.place(key_tile(0));
                    fetch_keys(1 - parity);
                }
                constexpr int outstanding = Loads::outstanding_after(phase.value);
                static_assert(outstanding >= -1, "a tile is read before it is loaded");
                if constexpr (outstanding >= 0) kittens::wait_vector_memory<outstanding>();
            },
            [&](auto phase) {
                if constexpr (phase.value < 2) {
                    score<phase.value * half>(next);
                    exponentiate<phase.value>(current);
                } else {
                    Values::multiply(output, powers[phase.value - 2], value_registers);
                }
                if constexpr (phase.value == 3) {
                    if (more) {
                        Wave::hide(next, key + keys);
                        softmax.follow(next, output);
                    }
                }
            });
    }
    struct NoWaits {
        static constexpr int outstanding_after(int) { return -1; }
    };

    KITTENS_DEVICE void run() {
        int key = Wave::first_tile_key();
        if (key < all.past) {
            const auto k = Wave::key_matrix(arguments.k), v = Wave::key_matrix(arguments.v);
            k_window = k.window(key, 0), v_window = v.window(key, 0);
            k_step = keys * k.row_bytes(), v_step = keys * v.row_bytes();
            keys_left = values_left = (all.past - key + keys - 1) / keys;
            key_loads.aim(k.row_bytes(), arguments.head_dim);
            value_loads.loads.aim(v.row_bytes());
            begin(key);
            kittens::eight_wave_ping_pong(kittens::wave_id(), [&] {
                while (true) {
                    step<0>(key, key + keys < all.past);
                    key += keys;
                    if (key >= all.past) break;
                    step<1>(key, key + keys < all.past);
                    key += keys;
                    if (key >= all.past) break;
                }
            });
            // LDS belongs to another workgroup once this one ends; nothing may still be on its way there.
            if constexpr (direct) kittens::wait_vector_memory<0>();
        }
        Wave::store();
    }

  private:
    // As if steps -2 and -1 had run: the scores of tile 0 are there, and the loads that step 0 counts on are under way.
    KITTENS_DEVICE void begin(int key) {
        fetch_keys(0);
        if constexpr (direct) {
            fetch_keys(1);
            fetch_values(0);
            kittens::wait_vector_memory<Keys::Loads::loads_per_wave + Values::Loads::loads_per_wave>();
        } else {
            key_loads.loads.place(key_tile(0));
            fetch_keys(1);
            fetch_values(0);
        }
        kittens::barrier();
        read_keys(key_tile(0), 0);
        score<0>(scores[0]);
        read_keys(key_tile(0), half);
        score<half>(scores[0]);
        kittens::barrier();
        if constexpr (!direct) key_loads.loads.place(key_tile(0));
        fetch_keys(0);
        if constexpr (direct) kittens::wait_vector_memory<DirectLoads::outstanding_after(phases - 1)>();
        Wave::hide(scores[0], key);
        softmax.follow(scores[0], output);
        kittens::barrier();
    }
};

}  // namespace hipkittens::attention
