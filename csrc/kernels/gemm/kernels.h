// kernels/gemm/kernels.h: C = A B for every element type, orientation, tile and target; and the reduction of a split K.
// SPDX-License-Identifier: MIT
#pragma once
#include "adding.h"
#include "block_scales.h"
#include "codes_epilogue.h"
#include "fused_epilogue.h"
#include "gated_epilogue.h"
#include "group_tiles.h"
#include "interleaved_loop.h"
#include "kinds.h"
#include "ping_pong_loop.h"
#include "reduce.h"
#include "reduce_scaled.h"
#include "scaled_epilogue.h"
#include "simple_loop.h"
#include "streamed_loop.h"

namespace hipkittens::gemm {

// The epilogue, with further stages `Last` where the sums have scales.
template <Scales scales, class... Last>
struct EpilogueOf {
    using type = ScaledEpilogue<SplitDestination, AddBias, Last...>;
};
template <class... Last>
struct EpilogueOf<Scales::none, Last...> {
    using type = Epilogue<SplitDestination, AddBias>;
};
template <Scales scales, class... Last>
    requires(scales == Scales::outer || scales == Scales::of_b)
struct EpilogueOf<scales, Last...> {
    using type = ScaledEpilogue<SplitDestination, ScaleSums<scales == Scales::outer>, AddBias, Last...>;
};

template <GemmConfig config, class Plain, class Scaled, class Tiles, class... Last>
using PolicyOf = GemmPolicy<typename element_of<config.a>::value, typename element_of<config.b>::value,
                            typename EpilogueOf<config.scales, Last...>::type,
                            choose<config.scales == Scales::blocks || config.scales == Scales::row_blocks,
                                   BlockScales<config>, AccumulateInPlace>,
                            choose<config.scales == Scales::none, Plain, Scaled>, Tiles>;

// At least the waves of one workgroup fit on the four SIMDs.
template <GemmConfig config, class Policy>
struct ProductKernel {
    using Loop = choose<config.schedule == Schedule::ping_pong, PingPongLoop<config, Policy>,
                        choose<config.schedule == Schedule::interleaved, InterleavedLoop<config, Policy>,
                               choose<config.schedule == Schedule::streamed, StreamedLoop<config, Policy>,
                                      SimpleLoop<config, Policy>>>>;
    static constexpr int threads = config.threads(), waves_per_simd = threads / 256,
                         lds_bytes = Loop::lds_bytes;

    KITTENS_DEVICE static void run(const typename Policy::Arguments& arguments, shared_byte* lds) {
        Policy::Tiles::template with_tile<config>(
            arguments, [&](const typename Policy::Arguments& of_tile, TileCoordinate tile)
                           KITTENS_INLINE { Loop(of_tile, tile, lds).run(tile); });
    }
};

template <GemmConfig config>
struct GemmKernel
    : ProductKernel<config, PolicyOf<config, GemmArguments, ScaledGemmArguments, TilesOfProduct, Activate>> {
};
template <GemmConfig config>
struct CodesKernel
    : ProductKernel<config,
                    GemmPolicy<typename element_of<config.a>::value, typename element_of<config.b>::value,
                               CodesEpilogue<SplitDestination, ScaleSums<true>, AddBias, Activate>,
                               AccumulateInPlace, CodesGemmArguments, TilesOfProduct>> {};
template <Scales scales>
using FusedEpilogueOf =
    choose<scales == Scales::outer, FusedEpilogue<ScaleSums<true>, AddBias, Activate, MultiplyAdd>,
           FusedEpilogue<AddBias, Activate, MultiplyAdd>>;
template <GemmConfig config>
using FusedProduct =
    ProductKernel<config,
                  GemmPolicy<typename element_of<config.a>::value, typename element_of<config.b>::value,
                             FusedEpilogueOf<config.scales>,
                             choose<config.scales == Scales::blocks, BlockScales<config>, AccumulateInPlace>,
                             FusedGemmArguments, TilesOfProduct>>;
template <GemmConfig config>
struct FusedKernel : FusedProduct<config> {
    KITTENS_DEVICE static void run(const FusedGemmArguments& arguments, shared_byte* lds) {
        TilesOfProduct::with_tile<config>(
            arguments, [&](const FusedGemmArguments& of_tile, TileCoordinate tile) KITTENS_INLINE {
                typename FusedProduct<config>::Loop(of_tile, tile, lds).run(tile);
                copy_joined_columns<config>(reload_arguments<FusedGemmArguments>(), tile);
            });
    }
};
// For 16-bit operands, in dedicated kernels: those of plain products must not grow.
template <GemmConfig config, class Epilogue, class Arguments, class Tiles, class Columns>
using ActivatedPolicy = GemmPolicy<typename element_of<config.a>::value, typename element_of<config.b>::value,
                                   Epilogue, AccumulateInPlace, Arguments, Tiles, Columns>;
template <GemmConfig config>
struct AddingKernel : ProductKernel<config, ActivatedPolicy<config, Epilogue<SplitDestination, AddSums>,
                                                            GemmArguments, TilesOfProduct, OwnColumns>> {};
template <GemmConfig config>
struct ActivatedKernel
    : ProductKernel<config, ActivatedPolicy<config, ActivatedEpilogue<SplitDestination, config.a>,
                                            ActivatedGemmArguments, TilesOfProduct, OwnColumns>> {};
template <GemmConfig config>
struct GatedKernel
    : ProductKernel<config,
                    ActivatedPolicy<config, GatedEpilogue<SplitDestination, config.a>, GatedGemmArguments,
                                    TilesOfColumns<PairedColumns::of_each>, PairedColumns>> {};
template <GemmConfig config>
struct GroupedKernel
    : ProductKernel<config,
                    PolicyOf<config, GroupedGemmArguments, ScaledGroupedGemmArguments, TilesOfGroups>> {};
template <GemmConfig config>
struct GatedGroupedKernel
    : ProductKernel<config, ActivatedPolicy<config, GatedEpilogue<SplitDestination, config.a>,
                                            GatedGroupedGemmArguments,
                                            TilesOfGroupedColumns<PairedColumns::of_each>, PairedColumns>> {};

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
