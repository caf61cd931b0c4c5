// kernels/attention/device.cpp: the entry point of one row of variants.def.
// SPDX-License-Identifier: MIT
// Compiled once per row and target with -DHIPKITTENS_VARIANT=<name>.
#include "backward.h"
#include "backward_convert.h"
#include "backward_delta.h"
#include "backward_one_pass_direct.h"
#include "backward_one_pass_through_registers.h"
#include "combine.h"
#include "forward.h"

#ifndef HIPKITTENS_VARIANT
#error "name a row of variants.def: -DHIPKITTENS_VARIANT=<name>"
#endif

#define PASTE_(a, b, c, d) a##b##c##d
#define PASTE(a, b, c, d) PASTE_(a, b, c, d)
#define KERNEL_NAME PASTE(hipkittens_attention_, HIPKITTENS_VARIANT, _, KITTENS_TARGET_NAME)
#define SELECTED PASTE(selected_, HIPKITTENS_VARIANT, , )

namespace hipkittens::attention {

// Each row declares what it is; only the selected row's template is instantiated.
template <ForwardConfig config>
struct forward_row {
    using arguments = ForwardArguments;
    static constexpr int threads = config.threads(), waves_per_simd = config.waves_per_simd();
    KITTENS_DEVICE static void enter(const arguments& values) {
        static __attribute__((shared, aligned(1024))) char lds[Forward<config>::lds_bytes];
        Forward<config>::run(values, (kittens::shared_byte*)lds);
    }
};
#define ATTENTION_FORWARD(name, ...) using selected_##name = forward_row<variant_##name.config>;
#include "each_row.h"

template <template <BackwardConfig> class Kernel, BackwardConfig config>
struct kernel_of {
    using type = Kernel<config>;
};
template <BackwardConfig config>
struct backward_row {
    using arguments = BackwardArguments;
    static constexpr int threads = config.threads(), waves_per_simd = threads / 256;
    KITTENS_DEVICE static void enter(const arguments& values) {
        using OnePass = kittens::choose<kittens::target.transposed_lds_read, kernel_of<OnePassDirect, config>,
                                        kernel_of<OnePassThroughRegisters, config>>;
        using Kernel = typename kittens::choose<config.owner == Owner::one_pass, OnePass,
                                                kernel_of<Backward, config>>::type;
        static __attribute__((shared, aligned(1024))) char lds[Kernel::lds_bytes];
        Kernel::run(values, (kittens::shared_byte*)lds);
    }
};
#define ATTENTION_BACKWARD(name, ...) using selected_##name = backward_row<variant_##name.config>;
#include "each_row.h"

// Kernels of rows and vectors, which need no LDS.
template <template <class> class Kernel, ElementType input, class Arguments, int kernel_threads>
struct plain_row {
    using arguments = Arguments;
    static constexpr int threads = kernel_threads, waves_per_simd = threads / 256;
    KITTENS_DEVICE static void enter(const arguments& values) {
        Kernel<typename element_of<input>::value>::run(values);
    }
};
#define ATTENTION_DELTA(name, ...) \
    using selected_##name = plain_row<Delta, variant_##name.input, BackwardArguments, delta_threads>;
#define ATTENTION_CONVERT(name, ...) \
    using selected_##name = plain_row<Convert, variant_##name.input, BackwardArguments, delta_threads>;
#define ATTENTION_COMBINE(name, ...) \
    using selected_##name = plain_row<Combine, variant_##name.input, CombineArguments, combine_threads>;
#include "each_row.h"

}  // namespace hipkittens::attention

// So many waves fit on a SIMD: the registers of a wave follow from that.
extern "C" __attribute__((global,
                          amdgpu_flat_work_group_size(hipkittens::attention::SELECTED::threads,
                                                      hipkittens::attention::SELECTED::threads),
                          amdgpu_waves_per_eu(hipkittens::attention::SELECTED::waves_per_simd))) void
KERNEL_NAME(hipkittens::attention::SELECTED::arguments arguments) {
    hipkittens::attention::SELECTED::enter(arguments);
}
