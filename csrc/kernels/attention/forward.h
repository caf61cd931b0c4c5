// kernels/attention/forward.h: softmax(scale Q K^T) V for one tile of queries of one head.
// SPDX-License-Identifier: MIT
#pragma once
#include "forward_interleaved.h"
#include "forward_simple.h"

namespace hipkittens::attention {

template <ForwardConfig config, Schedule schedule = config.schedule>
struct Forward {
    using Loop = SimpleForward<config>;
    static constexpr int lds_bytes = Loop::lds_bytes;
    KITTENS_DEVICE static void run(const ForwardArguments& arguments, kittens::shared_byte* lds) {
        Loop(arguments, lds).run();
    }
};

template <ForwardConfig config>
struct Forward<config, Schedule::interleaved> {
    using Loop = InterleavedForward<config>;
    static constexpr int lds_bytes = Loop::lds_bytes;
    KITTENS_DEVICE static void run(const ForwardArguments& arguments, kittens::shared_byte* lds) {
        Loop(arguments, lds).run();
    }
};

}  // namespace hipkittens::attention
