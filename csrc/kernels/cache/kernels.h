// kernels/cache/kernels.h: the device code of each kind of rows.
// SPDX-License-Identifier: MIT
#pragma once
#include "../cache_store.h"
#include "../element_of.h"
#include "kinds.h"

namespace hipkittens::cache {

// Eight features of a token's head for each thread; workgroup_id_y is the copy.
template <ElementConfig config>
struct CopyKernel {
    using T = typename element_of<config.element>::value;
    typedef kittens::raw_eight<T> vector __attribute__((aligned(4)));
    template <class V>
    using global = __attribute__((address_space(1))) V*;
    static constexpr int threads = cache::threads, waves_per_simd = 4, lds_bytes = 0;

    KITTENS_DEVICE static void run(const CopyArguments& arguments) {
        const Copy& copy = arguments.copies[kittens::workgroup_id_y()];
        const uint32_t thread = kittens::workgroup_id_x() * threads + kittens::thread_id();
        const uint32_t rest = thread >> copy.together, tokens = copy.units.quotient(rest),
                       unit = rest - tokens * copy.units.value;
        const uint32_t token = (tokens << copy.together) + (thread & ((1u << copy.together) - 1));
        if (token >= arguments.tokens) return;
        const uint32_t head = copy.chunks.quotient(unit),
                       first = (unit - head * copy.chunks.value) * thread_features,
                       count = copy.features - first;
        auto* from = (global<const T>)copy.from + token * copy.token + head * copy.head + first;
        kittens::raw_eight<T> values = T();
        if (copy.aligned && count >= thread_features) {
            values = *(global<const vector>)from;
        } else {
#pragma unroll
            for (uint32_t i = 0; i < thread_features; ++i)
                if (i < count) values[i] = from[i];
        }
        // Behind the loads of what goes there, so that all are in flight at once.
        const int32_t slot = slot_of(arguments.slots, token);
        if (slot < 0) return;
        store_in_cache<T>(arguments.slots, copy.to, slot, head, first, 1, count, values);
    }
};

}  // namespace hipkittens::cache
