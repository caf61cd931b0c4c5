// kernels/gemm/kernels.h: C = A B for every element type, orientation, tile and target; and the sum of a split K.
// SPDX-License-Identifier: MIT
#pragma once
#include "block_scales.h"
#include "group_tiles.h"
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
template <GemmConfig config>
struct policy_of<config, Scales::blocks> {
    using type = GemmPolicy<typename element_of<config.a>::value, typename element_of<config.b>::value,
                            ScaledEpilogue<SplitDestination, AddBias, Activate>, BlockScales<config>,
                            ScaledGemmArguments>;
};
template <GemmConfig config>
struct policy_of<config, Scales::row_blocks> : policy_of<config, Scales::blocks> {};
template <GemmConfig config>
struct policy_of<config, Scales::in_matrix> {
    using type = GemmPolicy<typename element_of<config.a>::value, typename element_of<config.b>::value,
                            ScaledEpilogue<SplitDestination, AddBias, Activate>, AccumulateInPlace,
                            ScaledGemmArguments>;
};

// At least the waves of one workgroup fit on the four SIMDs.
template <GemmConfig config, class Policy>
struct ProductKernel {
    using Loop = choose<config.schedule == Schedule::ping_pong, PingPongLoop<config, Policy>,
                        choose<config.schedule == Schedule::interleaved, InterleavedLoop<config, Policy>,
                               SimpleLoop<config, Policy>>>;
    static constexpr int threads = config.threads(), waves_per_simd = threads / 256,
                         lds_bytes = Loop::lds_bytes;

    KITTENS_DEVICE static void run(const typename Policy::Arguments& arguments, shared_byte* lds) {
        Policy::Tiles::template with_tile<config>(
            arguments, [&](const typename Policy::Arguments& of_tile, TileCoordinate tile)
                           KITTENS_INLINE { Loop(of_tile, tile, lds).run(tile); });
    }
};

template <GemmConfig config>
struct GemmKernel : ProductKernel<config, typename policy_of<config>::type> {};

template <GemmConfig config>
struct GroupedKernel
    : ProductKernel<config,
                    GemmPolicy<typename element_of<config.a>::value, typename element_of<config.b>::value,
                               Epilogue<SplitDestination, AddBias>, AccumulateInPlace, GroupedGemmArguments,
                               TilesOfGroups>> {};

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
