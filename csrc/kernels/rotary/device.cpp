// kernels/rotary/device.cpp: the entry point of one row of variants.def.
// SPDX-License-Identifier: MIT
// Compiled once per row and target with -DHIPKITTENS_VARIANT=<name>.
#include "../element_of.h"
#include "../preloaded_arguments.h"
#include "plain.h"

#ifndef HIPKITTENS_VARIANT
#error "name a row of variants.def: -DHIPKITTENS_VARIANT=<name>"
#endif

#define PASTE_(a, b, c, d) a##b##c##d
#define PASTE(a, b, c, d) PASTE_(a, b, c, d)
#define KERNEL_NAME PASTE(hipkittens_rotary_, HIPKITTENS_VARIANT, _, KITTENS_TARGET_NAME)
#define SELECTED PASTE(selected_, HIPKITTENS_VARIANT, , )

namespace hipkittens::rotary {

// Only the selected row's template is instantiated.
template <ElementType element>
struct any_row {
    using arguments = RotaryArguments;
    KITTENS_DEVICE static void run(const arguments& values) {
        rotary::run<typename element_of<element>::value>(values);
    }
};
template <ElementType element, ElementType table>
struct plain_row {
    using arguments = PlainArguments;
    KITTENS_DEVICE static void run(const arguments& values) {
        rotate_plain<typename element_of<element>::value, typename element_of<table>::value>(values);
    }
};
#define ROTARY(name, targets, element) using selected_##name = any_row<ElementType::element>;
#define ROTARY_PLAIN(name, targets, element, table) \
    using selected_##name = plain_row<ElementType::element, ElementType::table>;
#include "variants.def"
#undef ROTARY
#undef ROTARY_PLAIN

}  // namespace hipkittens::rotary

using Arguments = hipkittens::rotary::SELECTED::arguments;
#define KERNEL                                                                                    \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(hipkittens::rotary::waves * 64, \
                                                                  hipkittens::rotary::waves * 64))) void

// The rows of ROTARY: with words of their many arguments in registers from the start, the others would not fit.
#define IN_MEMORY_bf16 1
#define IN_MEMORY_f16 1
#define IN_MEMORY_f32 1
#if PASTE(IN_MEMORY_, HIPKITTENS_VARIANT, , )
KERNEL KERNEL_NAME(Arguments arguments) { hipkittens::rotary::SELECTED::run(arguments); }
#else
KERNEL KERNEL_NAME(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g,
                   hipkittens::NotPreloaded<Arguments> rest) {
    hipkittens::rotary::SELECTED::run(hipkittens::joined<Arguments>({a, b, c, d, e, f, g}, rest));
}
#endif
