// kernels/gemm/simple_loop.h: prefetches the next K tile to registers, multiplies the current one, barrier.
// SPDX-License-Identifier: MIT
#pragma once
#include "main_loop.h"

namespace hipkittens::gemm {

template <GemmConfig config, class Policy>
struct SimpleLoop : MainLoop<config, Policy, 1> {
    using Base = MainLoop<config, Policy, 1>;
    using Base::step_k, Base::height, Base::width, Base::in_flight, Base::sums, Base::row, Base::col,
        Base::a_tile, Base::b_tile;
    using typename Base::A, typename Base::B;
    static_assert(!Base::direct && Base::buffers == 1, "loads wait in registers");

    using Base::Base;

    KITTENS_DEVICE void k_tile() {
        if constexpr (Base::promotes) {
            zero(this->partial);
            this->accumulation.begin_k_tile();
            this->accumulation.template read<0, 0>(0);
            this->accumulation.begin_band();
            this->accumulation.issue(0);
        }
#pragma unroll
        for (int k = 0; k < config.tile_k; k += step_k) {
            typename Base::template RegistersA<step_k> a;
            typename Base::template RegistersB<step_k> b;
            A::template read<base_tiles<0, height, 0, 1>>(a, a_tile(0), row, k);
            B::template read<base_tiles<0, width, 0, 1>>(b, b_tile(0), col, k);
            for_each_index<height * width>([&](auto n) KITTENS_INLINE {
                this->template multiply<n.value / width, n.value % width, 0, false>(sums[0][0], a, b, {}, {});
            });
        }
        if constexpr (Base::promotes)
            for_each_index<height * width>(
                [&](auto n) { this->template promote<n.value / width, n.value % width>(); });
    }
    // After this, every wave may read the tile whose loads were issued.
    KITTENS_DEVICE void commit() const {
        in_flight.first.loads[0].commit(a_tile(0));
        in_flight.second.loads[0].commit(b_tile(0));
        barrier();
    }
    KITTENS_DEVICE void run(TileCoordinate tile) {
        this->accumulation.issue_first(0);
        in_flight.first.issue_first(0);
        in_flight.second.issue_first(0);
        commit();
        this->clear_past_k();
        this->clear_sums();
        barrier();
        while (in_flight.first.k_tiles.left > 0) {
            in_flight.first.issue(0);
            in_flight.second.issue(0);
            this->advance_both();
            k_tile();
            barrier();
            commit();
        }
        k_tile();
        this->store(tile);
    }
};

}  // namespace hipkittens::gemm
