// tiles/schedule.h: who computes while who moves data, under names.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"
#include "unroll.h"

namespace kittens {

// Eight waves, two on each SIMD, in two groups half a phase apart: while one group moves data the other
// multiplies. Waves i and i + 4 share a SIMD, so the groups are the lower and the upper four. The upper group
// meets one barrier more before the work and the lower group one more after it.
template <class Work>
KITTENS_DEVICE void eight_wave_ping_pong(int wave, const Work& work) {
    if (wave >= 4) s_barrier();
    work();
    if (wave < 4) s_barrier();
}

// The phases of one tile: move(phase) issues LDS reads and loads, multiply(phase) uses what was read. LDS
// reads are complete before the barrier, so a piece read in phase p by both groups may be overwritten from
// move(p + 1) on. Loads::outstanding_after(phase): how many loads may then be under way, see pipeline.h; -1:
// any number. finish(phase) multiplies the rest, behind the barrier that gives the other group its turn: the matrix
// cores have work until that group is there. It has the highest priority, or it would wait for all that group's products.
struct compiler_waits {
    static constexpr int outstanding_after(int) { return -1; }
};
struct nothing_left {
    template <class Phase>
    KITTENS_DEVICE void operator()(Phase) const {}
};
template <int Phases, class Loads = compiler_waits, class Move, class Multiply, class Finish = nothing_left>
KITTENS_DEVICE void ping_pong_phases(const Move& move, const Multiply& multiply, const Finish& finish = {}) {
    for_each_index<Phases>([&](auto phase) {
        move(phase);
        constexpr int outstanding = Loads::outstanding_after(phase.value);
        static_assert(outstanding >= -1, "a piece is read before it is loaded");
        wait < outstanding<0 ? any_vector_memory : outstanding, 0>();
        s_barrier();
        schedule_fence();
        set_priority<1>();
        multiply(phase);
        schedule_fence();
        set_priority<2>();
        s_barrier();
        schedule_fence();
        finish(phase);
        set_priority<0>();
        schedule_fence();
    });
}

}  // namespace kittens
