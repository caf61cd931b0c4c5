// kernels/attention/kernels.h: the device code of each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "backward.h"
#include "backward_convert.h"
#include "backward_delta.h"
#include "backward_one_pass_direct.h"
#include "backward_one_pass_through_registers.h"
#include "combine.h"
#include "forward_interleaved.h"
#include "forward_simple.h"
#include "kinds.h"

namespace hipkittens::attention {

template <ForwardConfig config>
struct ForwardKernel {
    using Loop = kittens::choose<config.schedule == Schedule::simple, SimpleForward<config>,
                                 InterleavedForward<config>>;
    static constexpr int threads = config.threads(), waves_per_simd = config.waves_per_simd(),
                         lds_bytes = Loop::lds_bytes;
    KITTENS_DEVICE static void run(const ForwardArguments& arguments, kittens::shared_byte* lds) {
        Loop(arguments, lds).run();
    }
};

template <template <BackwardConfig> class Kernel, BackwardConfig config>
struct kernel_of {
    using type = Kernel<config>;
};
// Only the template that is chosen is instantiated.
template <BackwardConfig config>
using backward_of = typename kittens::choose<
    config.gradient_of == GradientTarget::one_pass,
    kittens::choose<kittens::target.transposed_lds_read, kernel_of<OnePassDirect, config>,
                    kernel_of<OnePassThroughRegisters, config>>,
    kernel_of<Backward, config>>::type;
template <BackwardConfig config>
struct BackwardKernel {
    static constexpr int threads = config.threads(), waves_per_simd = threads / 256,
                         lds_bytes = backward_of<config>::lds_bytes;
    KITTENS_DEVICE static void run(const BackwardArguments& arguments, kittens::shared_byte* lds) {
        backward_of<config>(arguments, lds).run();
    }
};

template <ElementConfig config>
struct CombineKernel : Combine<typename element_of<config.element>::value> {
    static constexpr int threads = combine_threads, waves_per_simd = 1, lds_bytes = 0;
};
template <ElementConfig config>
struct DeltaKernel : Delta<typename element_of<config.element>::value> {
    static constexpr int threads = delta_threads, waves_per_simd = 1, lds_bytes = 0;
};
template <ElementConfig config>
struct ConvertKernel : Convert<typename element_of<config.element>::value> {
    static constexpr int threads = delta_threads, waves_per_simd = 1, lds_bytes = 0;
};

}  // namespace hipkittens::attention
