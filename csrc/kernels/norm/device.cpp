// kernels/norm/device.cpp: the entry point of one row of variants.def.
// SPDX-License-Identifier: MIT
// Compiled once per row and target with -DHIPKITTENS_VARIANT=<name>.
#include "../preloaded_arguments.h"
#include "backward.h"
#include "plain.h"

#ifndef HIPKITTENS_VARIANT
#error "name a row of variants.def: -DHIPKITTENS_VARIANT=<name>"
#endif

#define PASTE_(a, b, c, d) a##b##c##d
#define PASTE(a, b, c, d) PASTE_(a, b, c, d)
#define KERNEL_NAME PASTE(hipkittens_norm_, HIPKITTENS_VARIANT, _, KITTENS_TARGET_NAME)
#define SELECTED PASTE(selected_, HIPKITTENS_VARIANT, , )

namespace hipkittens::norm {

// Only the selected row's template is instantiated.
template <ElementType element, RowShape shape>
struct forward_row {
    using arguments = ForwardArguments;
    static constexpr int waves_per_simd = 4, threads = shape.threads(),
                         lds_bytes = RowSums<shape.waves>::lds_bytes;
    KITTENS_DEVICE static void run(const arguments& values, kittens::shared_byte* lds) {
        forward<typename element_of<element>::value, shape>(values, lds);
    }
};
template <ElementType element, RowShape shape, bool centred>
struct plain_row {
    using arguments = PlainArguments;
    static constexpr int waves_per_simd = 4, threads = shape.threads(),
                         lds_bytes = RowSums<shape.waves, shape.lanes>::lds_bytes;
    KITTENS_DEVICE static void run(const arguments& values, kittens::shared_byte* lds) {
        forward_plain<typename element_of<element>::value, shape, centred>(values, lds);
    }
};
template <ElementType element, RowShape shape>
struct backward_row {
    using arguments = BackwardArguments;
    static constexpr int sums_bytes = sums_columns(shape) ? PartialSums<shape>::lds_bytes : 4;
    static constexpr int waves_per_simd = shape.waves > 4 ? 4 : 2, threads = shape.threads(),
                         lds_bytes = sums_bytes > RowSums<shape.waves>::lds_bytes
                                         ? sums_bytes
                                         : RowSums<shape.waves>::lds_bytes;
    KITTENS_DEVICE static void run(const arguments& values, kittens::shared_byte* lds) {
        backward<typename element_of<element>::value, shape>(values, lds);
    }
};
template <ElementType element>
struct columns_row {
    using arguments = BackwardArguments;
    static constexpr int waves_per_simd = 4, threads = column_waves * 64, lds_bytes = 4;
    KITTENS_DEVICE static void run(const arguments& values, kittens::shared_byte*) {
        sum_columns<typename element_of<element>::value>(values);
    }
};
template <class = void>
struct reduce_row {
    using arguments = ReduceArguments;
    static constexpr int waves_per_simd = 4, threads = reduce_waves * 64,
                         lds_bytes = reduce_waves * reduce_columns * 4;
    KITTENS_DEVICE static void run(const arguments& values, kittens::shared_byte* lds) {
        reduce(values, lds);
    }
};
#define NORM_FORWARD(name, targets, element, waves, chunks) \
    using selected_##name = forward_row<ElementType::element, RowShape{waves, chunks}>;
#define NORM_PLAIN(name, targets, kind, element, ...) \
    using selected_##name = plain_row<ElementType::element, RowShape{__VA_ARGS__}, Kind::kind == Kind::layer>;
#define NORM_BACKWARD(name, targets, element, waves, chunks) \
    using selected_##name = backward_row<ElementType::element, RowShape{waves, chunks}>;
#define NORM_COLUMNS(name, targets, element) using selected_##name = columns_row<ElementType::element>;
#define NORM_REDUCE(name, targets) using selected_##name = reduce_row<>;
#include "variants.def"
#undef NORM_FORWARD
#undef NORM_PLAIN
#undef NORM_BACKWARD
#undef NORM_COLUMNS
#undef NORM_REDUCE

}  // namespace hipkittens::norm

using Arguments = hipkittens::norm::SELECTED::arguments;

// Four waves on each SIMD: 128 registers, and enough rows under way that their latency is hidden.
extern "C" __attribute__((global,
                          amdgpu_flat_work_group_size(hipkittens::norm::SELECTED::threads,
                                                      hipkittens::norm::SELECTED::threads),
                          amdgpu_waves_per_eu(hipkittens::norm::SELECTED::waves_per_simd))) void
KERNEL_NAME(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g,
            hipkittens::NotPreloaded<Arguments> rest) {
    static __attribute__((shared, aligned(16))) char lds[hipkittens::norm::SELECTED::lds_bytes];
    hipkittens::norm::SELECTED::run(hipkittens::joined<Arguments>({a, b, c, d, e, f, g}, rest),
                                    (kittens::shared_byte*)lds);
}
