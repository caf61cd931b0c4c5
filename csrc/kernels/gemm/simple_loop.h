// kernels/gemm/simple_loop.h: load the next K tile, multiply this one, meet.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"
#include "operand.h"

namespace hipkittens::gemm {

template <GemmConfig config>
struct SimpleLoop : LoopOperands<config> {
    using Operands = LoopOperands<config>;
    using typename Operands::A, typename Operands::B, typename Operands::SourceA, typename Operands::SourceB,
        typename Operands::TileA, typename Operands::TileB;
    static constexpr int waves = config.waves_m * config.waves_n;
    static_assert(A::fill != kittens::Fill::direct && config.buffers == 1,
                  "what is loaded waits in registers");
    static constexpr int lds_bytes = TileA::bytes + TileB::bytes;
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

    KITTENS_DEVICE static void run(const GemmArguments& arguments, WorkgroupPlace where,
                                   kittens::shared_byte* lds) {
        const int wave = kittens::wave_id();
        const int row = wave / config.waves_n * config.wave_m(),
                  col = wave % config.waves_n * config.wave_n();
        const SourceA source_a(arguments.a, where.batch, arguments.m, arguments.k, where.m);
        const SourceB source_b(arguments.b, where.batch, arguments.n, arguments.k, where.n);
        const KRange range(arguments, where.split, config.tile_k);
        const TileA a_tile{lds};
        const TileB b_tile{lds + TileA::bytes};

        A a;
        B b;
        a.init_offsets(source_a, 0);
        b.init_offsets(source_b, 0);
        a.issue_valid(source_a.window(range.last).view(), a_tile, range.valid_k);
        b.issue_valid(source_b.window(range.last).view(), b_tile, range.valid_k);
        commit(a, b, a_tile, b_tile);
        if (range.cuts_a_chunk()) {
            A::clear_past(a_tile, range.valid_k);
            B::clear_past(b_tile, range.valid_k);
            kittens::barrier();
        }

        Accumulator sums[1][1];
        Accumulator& sum = sums[0][0];
        zero(sum);
        kittens::global_window a_window = source_a.window(range.begin),
                               b_window = source_b.window(range.begin);
        const int64_t a_step = source_a.step_bytes(), b_step = source_b.step_bytes();
        for (int k_tile = range.begin; k_tile < range.last; ++k_tile) {
            a.loads.issue(a_window.view(), a_tile);
            b.loads.issue(b_window.view(), b_tile);
            a_window.advance(a_step);
            b_window.advance(b_step);
            multiply_tile(sum, a_tile, row, b_tile, col);
            kittens::barrier();
            commit(a, b, a_tile, b_tile);
        }
        multiply_tile(sum, a_tile, row, b_tile, col);
        kittens::barrier();  // everyone has read its operands
        store_product<lds_bytes / waves>(sums, kittens::reload_arguments<GemmArguments>(), where, row, col, 0,
                                         0, lds + wave * (lds_bytes / waves));
    }

  private:
    // After it every wave may read the tile whose loads were begun.
    KITTENS_DEVICE static void commit(const A& a, const B& b, TileA a_tile, TileB b_tile) {
        a.loads.commit(a_tile);
        b.loads.commit(b_tile);
        kittens::barrier();
    }
};

}  // namespace hipkittens::gemm
