// kernels/scaled_square/kernels.h: the device code of each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "../element_of.h"
#include "kinds.h"

namespace hipkittens::scaled_square {

template <ElementConfig config>
struct Square {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = workgroup_threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const SquareArguments& arguments) {
        const int64_t i = static_cast<int64_t>(kittens::workgroup_id_x()) * threads + kittens::thread_id();
        if (i >= arguments.count) return;
        const float x = static_cast<float>(static_cast<const T*>(arguments.x)[i]);
        static_cast<T*>(arguments.result)[i] = static_cast<T>(arguments.scale * x * x);
    }
};

template <ElementConfig config>
struct SquareGradient {
    using T = typename element_of<config.element>::value;
    static constexpr int threads = workgroup_threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const SquareArguments& arguments) {
        const int64_t i = static_cast<int64_t>(kittens::workgroup_id_x()) * threads + kittens::thread_id();
        if (i >= arguments.count) return;
        const float x = static_cast<float>(static_cast<const T*>(arguments.x)[i]);
        const float grad = static_cast<float>(static_cast<const T*>(arguments.grad)[i]);
        static_cast<T*>(arguments.result)[i] = static_cast<T>(2 * arguments.scale * x * grad);
    }
};

}  // namespace hipkittens::scaled_square
