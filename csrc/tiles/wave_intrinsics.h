// tiles/wave_intrinsics.h: wave and lane ids, waits and barriers, and hints to the compiler about values.
// SPDX-License-Identifier: MIT
#pragma once
#include "element.h"
#include "target.h"
#include "wait_counts.h"

namespace kittens {

KITTENS_DEVICE int lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
// The same, but computed at the call instead of being kept in a register until then.
KITTENS_DEVICE int recompute_lane_id() {
    uint32_t zero = 0;
    asm volatile("" : "+v"(zero));
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, zero));
}
KITTENS_DEVICE int thread_id() { return __builtin_amdgcn_workitem_id_x(); }
KITTENS_DEVICE int wave_id() { return __builtin_amdgcn_readfirstlane(thread_id() / wave_lanes); }
KITTENS_DEVICE uint32_t workgroup_id_x() { return __builtin_amdgcn_workgroup_id_x(); }
KITTENS_DEVICE uint32_t workgroup_id_y() { return __builtin_amdgcn_workgroup_id_y(); }
KITTENS_DEVICE uint32_t workgroup_id_z() { return __builtin_amdgcn_workgroup_id_z(); }
KITTENS_DEVICE uint32_t uniform(uint32_t value) { return __builtin_amdgcn_readfirstlane(value); }

// Waits, barriers, scheduling.

KITTENS_DEVICE void compiler_fence() { asm volatile("" ::: "memory"); }

template <int Outstanding>
KITTENS_DEVICE void wait_vector_memory() {
    static_assert(Outstanding >= 0 && Outstanding < 63, "vmcnt has 6 bits");
    compiler_fence();
    __builtin_amdgcn_s_waitcnt(wait_immediate(Outstanding, any_lds));
    compiler_fence();
}
// Waits for both at once; any_vector_memory or any_lds waits for nothing of that kind.
template <int VectorMemory, int Lds>
KITTENS_DEVICE void wait() {
    static_assert(VectorMemory >= 0 && VectorMemory <= any_vector_memory && Lds >= 0 && Lds <= any_lds);
    compiler_fence();
    __builtin_amdgcn_s_waitcnt(wait_immediate(VectorMemory, Lds));
    compiler_fence();
}
template <int Outstanding>
KITTENS_DEVICE void wait_lds() {
    static_assert(Outstanding >= 0 && Outstanding < 15, "lgkmcnt has 4 bits");
    compiler_fence();
    __builtin_amdgcn_s_waitcnt(wait_immediate(any_vector_memory, Outstanding));
    compiler_fence();
}

// All LDS accesses of the workgroup before the barrier are visible after it.
KITTENS_DEVICE void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}
// The bare instruction: it waits for no memory operation.
KITTENS_DEVICE void s_barrier() {
    compiler_fence();
    __builtin_amdgcn_s_barrier();
    compiler_fence();
}
template <int Priority>
KITTENS_DEVICE void set_priority() {
    __builtin_amdgcn_s_setprio(Priority);
}
// The compiler schedules nothing across it.
KITTENS_DEVICE void schedule_fence() { __builtin_amdgcn_sched_barrier(0); }

// Opaque to the optimizer, so that later additions fold into the offset field of a DS instruction.
template <class V>
KITTENS_DEVICE V opaque(V value) {
    asm("" : "+v"(value));
    return value;
}
// The same for a value that all lanes share: the compiler can neither derive it from other values nor derive others
// from it, and keeps only this one across iterations.
KITTENS_DEVICE int64_t opaque_scalar(int64_t value) {
    asm("" : "+s"(value));
    return value;
}

// Forces the value to be computed here instead of at its use, where its inputs would still occupy registers.
template <class V>
KITTENS_DEVICE void materialize(V& value) {
    asm volatile("" : "+v"(value));
}

// Keeps an operand of matrix instructions in the accumulation registers, which nothing else uses.
template <class V>
KITTENS_DEVICE void keep_in_accumulator(V& value) {
    asm("" : "+a"(value));
}

// Two floats that the compiler does not merge with others into longer vectors, whose arithmetic would then be in one place.
KITTENS_DEVICE void prevent_vectorization(vec<float, 2>& pair) { asm("" : "+v"(pair)); }

// Reads the kernel's argument struct, or one of several consecutive ones, from memory at the call: arguments that only part of
// a kernel needs then occupy no scalar registers elsewhere.
template <class Arguments>
KITTENS_DEVICE Arguments reload_arguments(uint32_t index = 0) {
    auto* arguments = __builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(arguments));
    return ((const __attribute__((address_space(4))) Arguments*)arguments)[index];
}

}  // namespace kittens
