// kernels/heads/kernels.h: the device code of copies that concatenate and split heads.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "kinds.h"

namespace hipkittens::heads {

template <NoConfig config>
struct Copy {
    static constexpr int threads = heads::threads, waves_per_simd = 8, lds_bytes = 0;
    template <class V>
    using global = __attribute__((address_space(1))) V*;
    // 16-byte accesses need dword alignment.
    typedef kittens::b128 vector __attribute__((aligned(4)));

    KITTENS_DEVICE static void run(const CopyArguments& arguments) {
        Part part = arguments.parts[0];
#pragma unroll
        for (int i = 1; i < most_parts; ++i)
            if (kittens::workgroup_id_x() >= arguments.parts[i].first_workgroup) part = arguments.parts[i];
        const uint32_t thread =
            (kittens::workgroup_id_x() - part.first_workgroup) * threads + kittens::thread_id();
        const uint32_t row = thread / part.threads_per_row;
        const uint32_t first = (thread - row * part.threads_per_row) * units_of_thread;
        if (row >= part.rows.all) return;
        const auto* from = (global<const uint16_t>)part.from.data + part.from.offset(row, part.rows) + first;
        auto* to = (global<uint16_t>)part.to + row * part.step + first;
        if (part.aligned && first + units_of_thread <= part.units) {
            *(global<vector>)to = *(global<const vector>)from;
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < units_of_thread; ++i)
            if (first + i < part.units) to[i] = from[i];
    }
};

}  // namespace hipkittens::heads
