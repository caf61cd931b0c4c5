// kernels/gemm/kernels.h: the device code of each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "gemm.h"
#include "kinds.h"
#include "reduce.h"

namespace hipkittens::gemm {

// At least the waves of one workgroup fit on the four SIMDs.
template <GemmConfig config>
struct GemmKernel {
    static constexpr int threads = config.threads(), waves_per_simd = threads / 256,
                         lds_bytes = Gemm<config>::lds_bytes;
    KITTENS_DEVICE static void run(const GemmArguments& arguments, kittens::shared_byte* lds) {
        Gemm<config>::run(arguments, place_of_workgroup<config>(arguments), lds);
    }
};

template <NoConfig config>
struct ReduceKernel {
    static constexpr int threads = reduce_threads, waves_per_simd = 1, lds_bytes = 0;
    KITTENS_DEVICE static void run(const ReduceArguments& arguments) { reduce(arguments); }
};

}  // namespace hipkittens::gemm
