// kernels/rotary/kernels.h: the device code of each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "kinds.h"
#include "plain.h"

// Not `rotary`: with words of its many arguments in registers from the start, the others would not fit.
#define PRELOADS_plain 1

namespace hipkittens::rotary {

template <ElementConfig config>
struct RotaryKernel {
    static constexpr int threads = waves * 64, waves_per_simd = 1, lds_bytes = 0;
    KITTENS_DEVICE static void run(const RotaryArguments& arguments) {
        rotary::run<typename element_of<config.element>::value>(arguments);
    }
};

template <PlainConfig config>
struct PlainKernel {
    static constexpr int threads = waves * 64, waves_per_simd = 1, lds_bytes = 0;
    KITTENS_DEVICE static void run(const PlainArguments& arguments) {
        rotate_plain<typename element_of<config.element>::value, typename element_of<config.table>::value>(
            arguments);
    }
};

}  // namespace hipkittens::rotary
