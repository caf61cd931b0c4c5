// kernels/attention/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "backward.h"
#include "backward_convert.h"
#include "backward_delta.h"
#include "backward_one_pass_direct.h"
#include "backward_one_pass_through_registers.h"
#include "backward_sinks.h"
#include "combine.h"
#include "forward_interleaved.h"
#include "forward_simple.h"
#include "kinds.h"
#include "pointwise_weights.h"
#include "quantized_forward.h"

namespace hipkittens::attention {

template <ForwardConfig config>
struct ForwardKernel {
    using Loop =
        choose<config.schedule == Schedule::simple, SimpleForward<config>, InterleavedForward<config>>;
    static constexpr int threads = config.threads(), waves_per_simd = Loop::waves_per_simd,
                         lds_bytes = Loop::lds_bytes;
    KITTENS_DEVICE static void run(const ForwardArgumentsOf<config.terms>& arguments, shared_byte* lds) {
        Loop(arguments, lds).run();
    }
};

template <BackwardConfig config>
using BackwardLoop =
    choose<config.gradient_of != GradientTarget::one_pass, Backward<config>,
           choose<target.transposed_lds_read, OnePassDirect<config>, OnePassThroughRegisters<config>>>;
template <BackwardConfig config>
struct BackwardKernel {
    static constexpr int threads = config.threads(), waves_per_simd = threads / 256,
                         lds_bytes = BackwardLoop<config>::lds_bytes;
    KITTENS_DEVICE static void run(const BackwardArgumentsOf<config.terms>& arguments, shared_byte* lds) {
        BackwardLoop<config>(arguments, lds).run();
    }
};

}  // namespace hipkittens::attention
