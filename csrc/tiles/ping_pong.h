// tiles/ping_pong.h: two groups of waves on the same SIMDs, half a phase apart: one moves data while the other multiplies.
// SPDX-License-Identifier: MIT
#pragma once
#include "interleave.h"

namespace kittens {

// Eight waves, two per SIMD: waves i and i + 4 share a SIMD, so the groups are the lower four and the upper four. The upper group
// passes one extra barrier before the work, the lower group one extra after it (HipKittens, arXiv 2511.08083, section 3.2).
template <class Work>
KITTENS_DEVICE void stagger_wave_groups(int wave, const Work& work) {
    if (wave >= 4) s_barrier();
    work();
    if (wave < 4) s_barrier();
}

// Runs phases First .. Past-1 of the body; slots are phases. In each phase, the other works issue LDS reads and loads. The wave
// then waits for its LDS reads and, by Loads::in_flight_after(phase), for loads (any_vector_memory: for none). After the
// barrier, `products` multiplies what was read. LDS reads complete before the barrier, so from the next phase on both groups
// may overwrite what they read in this one. The last product of a phase comes after the barrier that hands over to the other
// group, so that the matrix cores have work until that group arrives. It runs at the highest priority; otherwise it would wait
// for all products of that group.
template <int First, int Past, class Loads, class Products, class... Works>
KITTENS_DEVICE void ping_pong(const Products& products, const Works&... works) {
    for_each_index<Past, First>([&](auto phase) KITTENS_INLINE {
        using Schedule = item_schedule<phase.value, phase.value + 1, Products::placement>;
        const auto multiply = [&](auto at) KITTENS_INLINE {
            products.step(index<schedule_of<Schedule>.items[at.value].item>{});
        };
        interleave<phase.value, phase.value + 1>(works...);
        wait<Loads::in_flight_after(phase.value), 0>();
        s_barrier();
        schedule_fence();
        set_priority<1>();
        for_each_index<Schedule::count - 1>(multiply);
        schedule_fence();
        set_priority<2>();
        s_barrier();
        schedule_fence();
        multiply(index<Schedule::count - 1>{});
        set_priority<0>();
        schedule_fence();
    });
}

// Waits for loads to registers are inserted by the compiler.
struct loads_to_registers {
    static constexpr int in_flight_after(int) { return any_vector_memory; }
};

}  // namespace kittens
