// kernels/norm/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward.h"
#include "fused.h"
#include "kinds.h"
#include "plain.h"

#define PRELOADS_forward 1
#define PRELOADS_layer 1
#define PRELOADS_rms 1
#define PRELOADS_odd_layer 1
#define PRELOADS_odd_rms 1
#define PRELOADS_backward 1
#define PRELOADS_columns 1
#define PRELOADS_reduce 1

namespace hipkittens::norm {

// Four waves per SIMD leave 128 registers per lane, and keep enough rows in flight to hide the latency of their loads.
template <RowConfig config>
struct ForwardKernel {
    static constexpr int threads = config.shape().threads(), waves_per_simd = 4,
                         lds_bytes = RowReduction<config.waves>::lds_bytes;
    KITTENS_DEVICE static void run(const ForwardArguments& arguments, kittens::shared_byte* lds) {
        forward<typename element_of<config.element>::value, config.shape()>(arguments, lds);
    }
};

template <RowConfig config, bool centred, bool wide>
struct PlainKernel {
    static constexpr int threads = config.shape().threads(), waves_per_simd = 4,
                         lds_bytes = RowReduction<config.waves, config.lanes>::lds_bytes;
    KITTENS_DEVICE static void run(const PlainArguments& arguments, kittens::shared_byte* lds) {
        forward_plain<typename element_of<config.element>::value, config.shape(), centred, wide>(arguments,
                                                                                                 lds);
    }
};
template <RowConfig config>
struct LayerKernel : PlainKernel<config, true, true> {};
template <RowConfig config>
struct RmsKernel : PlainKernel<config, false, true> {};
template <RowConfig config>
struct OddLayerKernel : PlainKernel<config, true, false> {};
template <RowConfig config>
struct OddRmsKernel : PlainKernel<config, false, false> {};

template <FusedConfig config>
struct FusedKernel {
    static constexpr int threads = config.shape().threads(), waves_per_simd = 4,
                         lds_bytes = RowReduction<config.waves>::lds_bytes;
    KITTENS_DEVICE static void run(const FusedPair&, kittens::shared_byte* lds) {
        fused_rows<typename element_of<config.element>::value, config.shape(), config.usual>(lds);
    }
};

template <RowConfig config>
struct BackwardKernel {
    static constexpr RowShape shape = config.shape();
    static constexpr int row_bytes = RowReduction<shape.waves>::lds_bytes,
                         column_bytes = sums_columns(shape) ? PartialSums<shape>::lds_bytes : 0;
    static constexpr int threads = shape.threads(), waves_per_simd = shape.waves > 4 ? 4 : 2,
                         lds_bytes = row_bytes > column_bytes ? row_bytes : column_bytes;
    KITTENS_DEVICE static void run(const BackwardArguments& arguments, kittens::shared_byte* lds) {
        backward<typename element_of<config.element>::value, shape>(arguments, lds);
    }
};

template <ElementConfig config>
struct ColumnsKernel {
    static constexpr int threads = column_waves * 64, waves_per_simd = 4, lds_bytes = 0;
    KITTENS_DEVICE static void run(const BackwardArguments& arguments) {
        sum_columns<typename element_of<config.element>::value>(arguments);
    }
};

template <NoConfig config>
struct ReduceKernel {
    static constexpr int threads = reduce_waves * 64, waves_per_simd = 4,
                         lds_bytes = reduce_waves * reduce_columns * 4;
    KITTENS_DEVICE static void run(const ReduceArguments& arguments, kittens::shared_byte* lds) {
        reduce(arguments, lds);
    }
};

}  // namespace hipkittens::norm
