// kernels/gemm/streamed_loop.h: every wave loads what it multiplies, without barriers.
// SPDX-License-Identifier: MIT
#pragma once
#include "main_loop.h"

namespace hipkittens::gemm {

// For few rows: the weights, which are B, are read once, and no two waves of a workgroup need the same ones. A wave loads whole cache
// lines of them, and its lanes exchange them through the wave's own LDS; rows of A come from the vector cache for all waves but one.
// `config.in_registers` K tiles are in flight.
template <GemmConfig config, class Policy>
struct StreamedLoop : MainLoop<config, Policy, 1> {
    using Base = MainLoop<config, Policy, 1>;
    using Base::height, Base::width, Base::steps, Base::products, Base::range, Base::in_flight, Base::sums,
        Base::accumulation, Base::scales;
    using typename Base::A, typename Base::B;
    static constexpr int stages = config.in_registers;

    // A K tile of A and the scales of its sums; those of B are in the stream's own registers.
    struct Stage {
        typename Base::StreamA::Tile a;
        typename Base::Accumulation::Factors factors;
        typename Base::StepFactors::template Registers<height> a_scales;
        typename Base::StepFactors::template Registers<width> b_scales;
    } stage[stages];

    KITTENS_DEVICE StreamedLoop(const typename Policy::Arguments& arguments, TileCoordinate tile,
                                shared_byte* lds)
        : Base(arguments, tile, lds) {
        // All rows or columns of a wave may be past the end of the matrix, where no window begins.
        const TileCoordinate own = Base::tile_of_wave(tile);
        if (own.m >= arguments.m) in_flight.first.close();
        if (own.n >= arguments.n) in_flight.second.close();
    }

    template <int n>
    KITTENS_DEVICE void issue() {
        schedule_fence();
        in_flight.second.template issue<0, n>(0);
        in_flight.second.k_tiles.advance();
        in_flight.first.issue(stage[n].a);
        accumulation.load_next(stage[n].factors);
        scales.load_next(stage[n].a_scales, stage[n].b_scales);
        schedule_fence();
    }
    template <int n>
    KITTENS_DEVICE void multiply_tile() {
        typename Base::template RegistersB<config.tile_k> b;
        // A wave's LDS accesses execute in order; only the compiler must be kept from reordering them.
        in_flight.second.loads[0].template commit<n>(in_flight.second.tile(0));
        compiler_fence();
        B::template read<base_tiles<0, width, 0, steps>>(b, in_flight.second.tile(0), 0, 0);
        compiler_fence();
        if constexpr (Base::promotes) accumulation.now = stage[n].factors;
        for_each_index<steps * products>([&](auto m) KITTENS_INLINE {
            constexpr int step = m.value / products, i = m.value % products % height,
                          j = m.value % products / height;
            this->template multiply<i, j, step, step == 0>(sums[0][0], stage[n].a, b, stage[n].a_scales,
                                                           stage[n].b_scales);
        });
        if constexpr (Base::promotes)
            for_each_index<products>(
                [&](auto m) KITTENS_INLINE { this->template promote<m.value % height, m.value / height>(); });
        // The registers of this tile are free after its products; keeps the compiler from loading to other registers and copying.
        for_each_index<products>([&](auto m) KITTENS_INLINE {
            auto& sum = sums[0][0].tiles[m.value % height][m.value / height];
            sum = opaque(sum);
        });
    }
    // The remaining tiles, all of which are in flight.
    template <int n = 0>
    KITTENS_DEVICE void last_tiles(int left) {
        multiply_tile<n>();
        if constexpr (n + 1 < stages)
            if (left > n + 1) last_tiles<n + 1>(left);
    }
    KITTENS_DEVICE void run(TileCoordinate tile) {
        in_flight.second.template issue_first<0>(0);
        in_flight.first.issue_first(stage[0].a);
        accumulation.load_first(stage[0].factors);
        scales.load_first(stage[0].a_scales, stage[0].b_scales);
        for_each_index<stages, 1>([&](auto n) KITTENS_INLINE { issue<n.value>(); });
        this->clear_sums();
        if (A::is_cut(range.valid_k)) {
            in_flight.first.clear_past_k(stage[0].a);
            in_flight.second.loads[0].template clear_columns<0>(B::valid_cols(range.valid_k));
        }
        scales.clear_past(stage[0].a_scales, stage[0].b_scales);
        int left = range.count();
        for (; left > stages; left -= stages)
            for_each_index<stages>([&](auto n) KITTENS_INLINE {
                multiply_tile<n.value>();
                issue<n.value>();
            });
        last_tiles(left);
        this->store(tile);
    }
};

}  // namespace hipkittens::gemm
