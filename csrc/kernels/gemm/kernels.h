// kernels/gemm/kernels.h: C = A B for every element type, orientation, tile and target; and the sum of a split K.
// SPDX-License-Identifier: MIT
#pragma once
#include "interleaved_loop.h"
#include "kinds.h"
#include "ping_pong_loop.h"
#include "reduce.h"
#include "reduce_scaled.h"
#include "scaled_epilogue.h"
#include "simple_loop.h"

namespace hipkittens::gemm {

template <GemmConfig config, Scales = config.scales>
struct policy_of {
    using type = GemmPolicy<typename element_of<config.a>::value, typename element_of<config.b>::value>;
};
template <GemmConfig config>
struct policy_of<config, Scales::outer> {
    using type = GemmPolicy<typename element_of<config.a>::value, typename element_of<config.b>::value,
                            ScaledEpilogue<SplitDestination, ScaleSums, AddBias, Activate>, AccumulateInPlace,
                            ScaledGemmArguments>;
};

// At least the waves of one workgroup fit on the four SIMDs.
template <GemmConfig config>
struct GemmKernel {
    using Policy = typename policy_of<config>::type;
    using Loop = choose<config.schedule == Schedule::ping_pong, PingPongLoop<config, Policy>,
                        choose<config.schedule == Schedule::interleaved, InterleavedLoop<config, Policy>,
                               SimpleLoop<config, Policy>>>;
    static constexpr int threads = config.threads(), waves_per_simd = threads / 256,
                         lds_bytes = Loop::lds_bytes;

    KITTENS_DEVICE static void run(const typename Policy::Arguments& arguments, shared_byte* lds) {
        const TilePosition position = tile_of_workgroup(workgroup_id_x(), arguments.order);
        const TileCoordinate tile{static_cast<int>(position.m) * config.tile_m,
                                  static_cast<int>(position.n) * config.tile_n,
                                  static_cast<int>(workgroup_id_y()), static_cast<int64_t>(workgroup_id_z())};
        Loop(arguments, tile, lds).run(tile);
    }
};

template <NoConfig config>
struct ReduceKernel {
    static constexpr int threads = reduce_threads, waves_per_simd = 1, lds_bytes = 0;
    KITTENS_DEVICE static void run(const ReduceArguments& arguments) { reduce(arguments); }
};
template <SumConfig config>
struct ScaledReduceKernel {
    static constexpr int threads = reduce_threads, waves_per_simd = 1, lds_bytes = 0;
    KITTENS_DEVICE static void run(const ScaledReduceArguments& arguments) {
        reduce_scaled<choose<config.sum == ElementType::i32, int, float>>(arguments);
    }
};

}  // namespace hipkittens::gemm
