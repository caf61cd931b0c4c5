// kernels/rotary/device.cpp: the entry point of one row of variants.def.
// SPDX-License-Identifier: MIT
// Compiled once per row and target with -DHIPKITTENS_VARIANT=<name>.
#include "rotary.h"

#ifndef HIPKITTENS_VARIANT
#error "name a row of variants.def: -DHIPKITTENS_VARIANT=<name>"
#endif

#define PASTE_(a, b, c, d) a##b##c##d
#define PASTE(a, b, c, d) PASTE_(a, b, c, d)
#define KERNEL_NAME PASTE(hipkittens_rotary_, HIPKITTENS_VARIANT, _, KITTENS_TARGET_NAME)
#define SELECTED PASTE(selected_, HIPKITTENS_VARIANT, , )

namespace hipkittens::rotary {

template <ElementType type>
struct element_of {
    using value = float;
};
template <>
struct element_of<ElementType::bf16> {
    using value = kittens::bf16;
};
template <>
struct element_of<ElementType::f16> {
    using value = kittens::half;
};
#define ROTARY(name, targets, element) using selected_##name = element_of<ElementType::element>::value;
#include "variants.def"
#undef ROTARY

}  // namespace hipkittens::rotary

extern "C" __attribute__((global, amdgpu_flat_work_group_size(hipkittens::rotary::waves * 64,
                                                              hipkittens::rotary::waves * 64))) void
KERNEL_NAME(hipkittens::rotary::RotaryArguments arguments) {
    hipkittens::rotary::run<hipkittens::rotary::SELECTED>(arguments);
}
