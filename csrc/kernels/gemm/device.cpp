// kernels/gemm/device.cpp: the entry point of one row of variants.def.
// SPDX-License-Identifier: MIT
// Compiled once per row and target with -DHIPKITTENS_VARIANT=<name>.
#include "gemm.h"
#include "reduce.h"

#ifndef HIPKITTENS_VARIANT
#error "name a row of variants.def: -DHIPKITTENS_VARIANT=<name>"
#endif

#define PASTE_(a, b, c, d) a##b##c##d
#define PASTE(a, b, c, d) PASTE_(a, b, c, d)
#define KERNEL_NAME PASTE(hipkittens_gemm_, HIPKITTENS_VARIANT, _, KITTENS_TARGET_NAME)
#define SELECTED PASTE(selected_, HIPKITTENS_VARIANT, , )

namespace hipkittens::gemm {

enum class Kind { product, reduce };
// Each row declares what it is; only the selected row's template is instantiated.
template <GemmConfig config>
struct product_row {
    static constexpr Kind kind = Kind::product;
    using kernel = Gemm<config>;
    static constexpr GemmConfig configuration = config;
    using arguments = GemmArguments;
    static constexpr int threads = config.threads();
};
struct reduce_row {
    static constexpr Kind kind = Kind::reduce;
    using arguments = ReduceArguments;
    static constexpr int threads = reduce_threads;
};
#define GEMM(name, ...) using selected_##name = product_row<variant_##name.config>;
#define GEMM_REDUCE(name, targets) using selected_##name = reduce_row;
#include "variants.def"
#undef GEMM
#undef GEMM_REDUCE

template <class Row>
KITTENS_DEVICE void enter(const typename Row::arguments& arguments) {
    if constexpr (Row::kind == Kind::product) {
        static __attribute__((shared, aligned(1024))) char lds[Row::kernel::lds_bytes];
        Row::kernel::run(arguments, place_of_workgroup<Row::configuration>(arguments),
                         (kittens::shared_byte*)lds);
    } else {
        reduce(arguments);
    }
}

}  // namespace hipkittens::gemm

// At least one workgroup's waves fit on the four SIMDs: the registers of a wave follow from its number of
// threads.
extern "C" __attribute__((global,
                          amdgpu_flat_work_group_size(hipkittens::gemm::SELECTED::threads,
                                                      hipkittens::gemm::SELECTED::threads),
                          amdgpu_waves_per_eu(hipkittens::gemm::SELECTED::threads / 256))) void
KERNEL_NAME(hipkittens::gemm::SELECTED::arguments arguments) {
    hipkittens::gemm::enter<hipkittens::gemm::SELECTED>(arguments);
}
