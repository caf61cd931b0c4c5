// simulator/execute/memory_step.h: how memory instructions use a step, and their common work at issue.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/execute/memory_lanes.h"
#include "simulator/machine/step_builder.h"
#include "simulator/machine/workgroup.h"
#include "simulator/memory/lds_banks.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// Fields of a memory step:
// * destination, dwords: first result row, number of result rows
// * source[0] address register, source[1] data, source[2] second data, scalar address or descriptor
// * immediate: byte offset
// * extra[0] bytes per lane, extra[1] offset of the second LDS access or row of soffset, extra[2] flags
// * data: the function that performs the access when it completes
namespace memory_flag {
inline constexpr uint32_t poison = 1, count_conflicts = 2, is_gfx950 = 4, is_store = 8;
inline constexpr uint32_t access_shift = 8;  // LdsAccess
}  // namespace memory_flag

using Complete = PendingOperation::Complete;
static inline Complete completion_of(const Step* step) {
    return reinterpret_cast<Complete>(const_cast<void*>(step->data));
}
static inline void set_completion(Step& step, Complete complete) {
    step.data = reinterpret_cast<const void*>(complete);
}

// Common setup for operations with results in registers.
HIPKITTENS_INLINE void begin_results(Wave* wave, const Step* step, PendingOperation* operation) {
    operation->complete = completion_of(step);
    operation->destination = step->destination;
    operation->rows = at(wave, step->destination);
    operation->dwords = step->dwords;
    operation->bytes = static_cast<uint8_t>(step->extra[0]);
}

HIPKITTENS_INLINE void poison_results(Wave* wave, const Step* step) {
    if (__builtin_expect(step->extra[2] & memory_flag::poison, 0)) {
        fill_rows(at(wave, step->destination), step->dwords, poison_pattern, wave->exec);
    }
}

// Lanes outside `lanes` get the address of one inside, so that the completion may read all 64.
template <class Address>
HIPKITTENS_INLINE void fill_idle_lanes(Address* address, uint64_t lanes) {
    if (lanes == all_lanes || !lanes) return;
    const Address good = address[__builtin_ctzll(lanes)];
#if defined(__AVX512F__)
    if constexpr (sizeof(Address) == 8) {
        const __m512i everywhere = _mm512_set1_epi64(static_cast<int64_t>(good));
        for (int i = 0; i < 8; ++i) {
            _mm512_mask_store_epi64(address + 8 * i, static_cast<__mmask8>(~lanes >> (8 * i)), everywhere);
        }
    } else {
        const __m512i everywhere = _mm512_set1_epi32(static_cast<int32_t>(good));
        for (int i = 0; i < 4; ++i) {
            _mm512_mask_store_epi32(address + 16 * i, static_cast<__mmask16>(~lanes >> (16 * i)), everywhere);
        }
    }
#else
    for (uint64_t idle = ~lanes; idle; idle &= idle - 1) address[__builtin_ctzll(idle)] = good;
#endif
}

// sums[lane] = row[lane] + addend; returns whether any of them exceeds `limit`.
HIPKITTENS_INLINE bool add_and_compare(const uint32_t* __restrict row, uint32_t addend, uint32_t limit,
                                       uint32_t* __restrict sums) {
#if defined(__AVX512F__)
    i32x16 beyond = {};
    for (int quarter = 0; quarter < 4; ++quarter) {
        const u32x16 sum = *reinterpret_cast<const u32x16*>(row + 16 * quarter) + addend;
        *reinterpret_cast<u32x16*>(sums + 16 * quarter) = sum;
        beyond |= (i32x16)(sum > limit);
    }
    return is_any(beyond);
#else
    uint32_t beyond = 0;
    for (int lane = 0; lane < 64; ++lane) {
        const uint32_t sum = row[lane] + addend;
        sums[lane] = sum;
        beyond |= sum > limit ? 1u : 0u;
    }
    return beyond != 0;
#endif
}

// Lanes whose offset exceeds `limit`.
static inline uint64_t lanes_beyond(const uint32_t* offset, uint32_t limit) {
    uint64_t lanes = 0;
    for (int lane = 0; lane < 64; ++lane) lanes |= static_cast<uint64_t>(offset[lane] > limit) << lane;
    return lanes;
}

static inline uint32_t flags_of(const StepBuilder& builder, const isa::Instruction& instruction) {
    return (builder.settings().poison ? memory_flag::poison : 0) |
           (builder.settings().count_lds_conflicts ? memory_flag::count_conflicts : 0) |
           (instruction.target == isa::Target::gfx950 ? memory_flag::is_gfx950 : 0);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
