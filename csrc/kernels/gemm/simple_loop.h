// kernels/gemm/simple_loop.h: prefetch the next K tile to registers, multiply the current one, barrier.
// SPDX-License-Identifier: MIT
#pragma once
#include "epilogue.h"
#include "operand.h"

namespace hipkittens::gemm {

template <GemmConfig config, class TypeA, class TypeB = TypeA>
struct SimpleLoop {
    using A = Operand<TypeA, config.tile_m, !config.a_is_transposed(), config>;
    using B = Operand<TypeB, config.tile_n, config.b_is_transposed(), config>;
    static constexpr int waves = config.waves_m * config.waves_n,
                         lds_bytes = A::Tile::bytes + B::Tile::bytes;
    static_assert(A::fill != kittens::Fill::direct && config.buffers == 1, "loads wait in registers");
    static_assert(lds_bytes <= kittens::target.lds_bytes);
    using Accumulator = kittens::rt<float, config.wave_m(), config.wave_n(), kittens::row_l,
                                    kittens::base_shape<config.matrix, config.matrix, 4>>;

    typename A::Source source_a;
    typename B::Source source_b;
    KRange range;
    typename A::Tile a_tile;
    typename B::Tile b_tile;
    typename A::Loads a;
    typename B::Loads b;
    int row, col;  // of the wave in the tile
    Accumulator sums[1][1];

    KITTENS_DEVICE SimpleLoop(const GemmArguments& arguments, TileCoordinate tile, kittens::shared_byte* lds)
        : source_a(arguments.a, tile.batch, arguments.m, arguments.k, tile.m),
          source_b(arguments.b, tile.batch, arguments.n, arguments.k, tile.n),
          range(arguments, tile.split, config.tile_k),
          a_tile{lds},
          b_tile{lds + A::Tile::bytes},
          row(kittens::wave_id() / config.waves_n * config.wave_m()),
          col(kittens::wave_id() % config.waves_n * config.wave_n()) {}

    KITTENS_DEVICE void multiply() {
        constexpr int step_k = A::step_k;
#pragma unroll
        for (int k = 0; k < config.tile_k; k += step_k) {
            typename A::template Registers<config.wave_m(), step_k> a_registers;
            typename B::template Registers<config.wave_n(), step_k> b_registers;
            A::template read<kittens::base_tiles<0, Accumulator::height, 0, 1>>(a_registers, a_tile, row, k);
            B::template read<kittens::base_tiles<0, Accumulator::width, 0, 1>>(b_registers, b_tile, col, k);
            kittens::for_each_index<Accumulator::height>([&](auto i) {
                kittens::for_each_index<Accumulator::width>([&](auto j) {
                    auto& sum = sums[0][0].tiles[i.value][j.value];
                    sum = kittens::multiply_base<kittens::row_l, typename Accumulator::shape>(
                        A::template fragment<i.value, 0>(a_registers),
                        B::template fragment<j.value, 0>(b_registers), sum);
                });
            });
        }
    }
    // After it every wave may read the tile whose loads were issued.
    KITTENS_DEVICE void commit() const {
        a.commit(a_tile);
        b.commit(b_tile);
        kittens::barrier();
    }
    KITTENS_DEVICE void run(TileCoordinate tile) {
        a.init_offsets(source_a.matrix.row_bytes());
        b.init_offsets(source_b.matrix.row_bytes());
        a.issue_valid(source_a.window(range.last).view(), a_tile, A::valid_rows(range.valid_k),
                      A::valid_cols(range.valid_k));
        b.issue_valid(source_b.window(range.last).view(), b_tile, B::valid_rows(range.valid_k),
                      B::valid_cols(range.valid_k));
        commit();
        if (A::is_cut(range.valid_k)) {
            A::clear_past(a_tile, range.valid_k);
            B::clear_past(b_tile, range.valid_k);
            kittens::barrier();
        }
        zero(sums[0][0]);
        // Bases move: all of K need not be within one buffer.
        kittens::global_window a_window = source_a.window(range.begin),
                               b_window = source_b.window(range.begin);
        for (int k_tile = range.begin; k_tile < range.last; ++k_tile) {
            a.issue(a_window.view(), a_tile);
            b.issue(b_window.view(), b_tile);
            a_window.advance(source_a.step_bytes());
            b_window.advance(source_b.step_bytes());
            multiply();
            kittens::barrier();
            commit();
        }
        multiply();
        kittens::barrier();  // everyone has read its operands
        store_product<lds_bytes / waves>(sums, kittens::reload_arguments<GemmArguments>(), tile, row, col, 0,
                                         0, a_tile.data + kittens::wave_id() * (lds_bytes / waves));
    }
};

}  // namespace hipkittens::gemm
