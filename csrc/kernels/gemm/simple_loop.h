// kernels/gemm/simple_loop.h: load the next K tile, multiply this one, meet.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"
#include "operand.h"

namespace hipkittens::gemm {

template <GemmConfig config>
struct SimpleLoop {
    using T = typename element_of<config.input>::type;
    static constexpr int threads = config.threads(), waves = config.waves_m * config.waves_n;
    static constexpr bool a_runs_along_k = !config.a_is_transposed(),
                          b_runs_along_k = config.b_is_transposed();
    using SourceA = OperandSource<T, a_runs_along_k, config.tile_k>;
    using SourceB = OperandSource<T, b_runs_along_k, config.tile_k>;
    using A = OperandPiece<T, config.tile_m, config.tile_k, threads, config.matrix, a_runs_along_k,
                           config.row_start>;
    using B = OperandPiece<T, config.tile_n, config.tile_k, threads, config.matrix, b_runs_along_k,
                           config.row_start>;
    using TileA = typename A::Tile;
    using TileB = typename B::Tile;
    static constexpr bool direct = A::fill == kittens::Fill::direct;
    static constexpr int buffers = direct ? 2 : 1;
    static constexpr int lds_bytes = buffers * (TileA::bytes + TileB::bytes);
    static_assert(lds_bytes <= kittens::target.lds_bytes, "the K tiles under way fit in LDS");
    static constexpr int step_k = 32;
    static_assert(config.tile_k % step_k == 0 && config.wave_m() % config.matrix == 0 &&
                      config.wave_n() % config.matrix == 0,
                  "waves own whole base tiles");

    using Accumulator = kittens::rt<float, config.wave_m(), config.wave_n(), kittens::row_l,
                                    kittens::base_shape<config.matrix, config.matrix, 4>>;

    KITTENS_DEVICE static void multiply_tile(Accumulator& sum, TileA a_tile, int row, TileB b_tile, int col) {
#pragma unroll
        for (int k = 0; k < config.tile_k; k += step_k) {
            typename A::template Registers<config.wave_m(), step_k> a;
            typename B::template Registers<config.wave_n(), step_k> b;
            A::template read<config.wave_m(), step_k>(a, a_tile, row, k);
            B::template read<config.wave_n(), step_k>(b, b_tile, col, k);
            multiply<A, B>(sum, a, b);
        }
    }

    KITTENS_DEVICE static void run(const GemmArguments& arguments, WorkgroupPlace place,
                                   kittens::shared_byte* lds) {
        const int wave = kittens::wave_id();
        const int row = wave / config.waves_n * config.wave_m(),
                  col = wave % config.waves_n * config.wave_n();
        const SourceA source_a(arguments.a, place.batch, arguments.m, arguments.k, place.m);
        const SourceB source_b(arguments.b, place.batch, arguments.n, arguments.k, place.n);
        const KRange range(arguments, place.split, config.tile_k);
        auto a_tile = [&](int buffer) { return TileA{lds + buffer * TileA::bytes}; };
        auto b_tile = [&](int buffer) { return TileB{lds + buffers * TileA::bytes + buffer * TileB::bytes}; };

        A a;
        B b;
        a.aim(source_a, 0);
        b.aim(source_b, 0);
        a.fetch_valid(source_a.window(range.last).view(), a_tile(0), range.valid_k);
        b.fetch_valid(source_b.window(range.last).view(), b_tile(0), range.valid_k);
        settle(a, b, a_tile(0), b_tile(0));
        if (range.cuts_a_chunk()) {
            A::clear_past(a_tile(0), range.valid_k);
            B::clear_past(b_tile(0), range.valid_k);
            kittens::barrier();
        }

        Accumulator sums[1][1];
        Accumulator& sum = sums[0][0];
        zero(sum);
        kittens::global_window a_window = source_a.window(range.begin),
                               b_window = source_b.window(range.begin);
        const int64_t a_step = source_a.step_bytes(), b_step = source_b.step_bytes();
        int buffer = 0;
        for (int k_tile = range.begin; k_tile < range.last; ++k_tile) {
            const int next = direct ? buffer ^ 1 : 0;
            a.loads.fetch(a_window.view(), a_tile(next));
            b.loads.fetch(b_window.view(), b_tile(next));
            a_window.advance(a_step);
            b_window.advance(b_step);
            multiply_tile(sum, a_tile(buffer), row, b_tile(buffer), col);
            if constexpr (!direct) kittens::barrier();
            settle(a, b, a_tile(next), b_tile(next));
            buffer = next;
        }
        multiply_tile(sum, a_tile(buffer), row, b_tile(buffer), col);
        kittens::barrier();  // everyone has read its operands
        store_product<lds_bytes / waves>(sums, kittens::arguments_again<GemmArguments>(), place, row, col, 0,
                                         0, lds + wave * (lds_bytes / waves));
    }

  private:
    // After it every wave may read the tiles whose loads were begun.
    KITTENS_DEVICE static void settle(const A& a, const B& b, TileA a_tile, TileB b_tile) {
        if constexpr (direct) {
            kittens::wait_vector_memory<0>();
        } else {
            a.loads.place(a_tile);
            b.loads.place(b_tile);
        }
        kittens::barrier();
    }
};

}  // namespace hipkittens::gemm
