// kernels/gemm/kernels.h: C = A B for every element type, orientation, tile and target; and the sum of a split K.
// SPDX-License-Identifier: MIT
#pragma once
#include "interleaved_loop.h"
#include "kinds.h"
#include "ping_pong_loop.h"
#include "reduce.h"
#include "simple_loop.h"

namespace hipkittens::gemm {

// At least the waves of one workgroup fit on the four SIMDs.
template <GemmConfig config>
struct GemmKernel {
    using Type = typename element_of<config.input>::value;
    using Loop = kittens::choose<
        config.schedule == Schedule::ping_pong, PingPongLoop<config, Type>,
        kittens::choose<config.schedule == Schedule::interleaved, InterleavedLoop<config, Type>,
                        SimpleLoop<config, Type>>>;
    static constexpr int threads = config.threads(), waves_per_simd = threads / 256,
                         lds_bytes = Loop::lds_bytes;

    KITTENS_DEVICE static void run(const GemmArguments& arguments, kittens::shared_byte* lds) {
        const TilePosition position = tile_of_workgroup(kittens::workgroup_id_x(), arguments.order);
        const TileCoordinate tile{
            static_cast<int>(position.m) * config.tile_m, static_cast<int>(position.n) * config.tile_n,
            static_cast<int>(kittens::workgroup_id_y()), static_cast<int64_t>(kittens::workgroup_id_z())};
        Loop(arguments, tile, lds).run(tile);
    }
};

template <NoConfig config>
struct ReduceKernel {
    static constexpr int threads = reduce_threads, waves_per_simd = 1, lds_bytes = 0;
    KITTENS_DEVICE static void run(const ReduceArguments& arguments) { reduce(arguments); }
};

}  // namespace hipkittens::gemm
