// kernels/rotary/kernels.h: the device code for each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../element_of.h"
#include "joined.h"
#include "kinds.h"
#include "plain.h"
#include "qkv.h"

// Not for the other kinds: with words of their many arguments in registers from the start, the rest would not fit.
#define PRELOADS_plain 1
#define PRELOADS_joined 1

namespace hipkittens::rotary {

template <ElementConfig config>
struct RotaryKernel {
    static constexpr int threads = waves * 64, waves_per_simd = 1, lds_bytes = 0;
    KITTENS_DEVICE static void run(const RotaryArguments& arguments) {
        rotate<typename element_of<config.element>::value>(arguments);
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

template <ElementConfig config>
struct QkvKernel {
    static constexpr int threads = waves * 64, waves_per_simd = 4, lds_bytes = 0;
    KITTENS_DEVICE static void run(const QkvArguments& arguments) {
        split_and_rotate<typename element_of<config.element>::value>(arguments);
    }
};

template <ElementConfig config>
struct QkvBackwardKernel {
    // Gradients, heads, weights and their sums at once would not fit in the registers that four waves leave.
    static constexpr int threads = waves * 64, waves_per_simd = 2, lds_bytes = 0;
    KITTENS_DEVICE static void run(const QkvBackwardArguments& arguments) {
        split_backward<typename element_of<config.element>::value>(arguments);
    }
};

template <ElementConfig config>
struct JoinedKernel {
    static constexpr int threads = joined_threads, waves_per_simd = 4, lds_bytes = 0;
    KITTENS_DEVICE static void run(const JoinedArguments& arguments) {
        using T = typename element_of<config.element>::value;
        if (arguments.wide)
            join_and_rotate<T, true>(arguments);
        else
            join_and_rotate<T, false>(arguments);
    }
};

}  // namespace hipkittens::rotary
