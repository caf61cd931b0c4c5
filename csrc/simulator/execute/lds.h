// simulator/execute/lds.h: the parts of the LDS family, and how each of its instructions is issued.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/execute/memory_step.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

bool bind_lds_exchange(const isa::Instruction& instruction, StepBuilder& builder);
bool bind_lds_atomic(const isa::Instruction& instruction, StepBuilder& builder);
bool bind_lds_permute(const isa::Instruction& instruction, StepBuilder& builder);
bool bind_lds_transpose(const isa::Instruction& instruction, StepBuilder& builder);

void count_lds_access(Wave* wave, const Step* step, const uint32_t* address);

// Records the 64 LDS addresses and returns the active lanes whose range [address, address + bytes) is not
// entirely inside LDS. Addresses wrap at 32 bits, as LLVM assumes when it folds an offset into a negative
// base.
HIPKITTENS_INLINE uint64_t record_lds_addresses(Wave* wave, const Step* step, PendingOperation* operation) {
    const uint32_t bytes = step->extra[0];
    const uint32_t limit = wave->lds_bytes - bytes;
    const uint32_t* row = reinterpret_cast<const uint32_t*>(at(wave, step->source[0]));
    const bool beyond =
        add_and_compare(row, static_cast<uint32_t>(step->immediate), limit, operation->lds_address);
    if (__builtin_expect(wave->lds_bytes < bytes, 0)) return wave->exec;
    if (__builtin_expect(!beyond, 1)) return 0;
    return lanes_beyond(operation->lds_address, limit) & wave->exec;
}

HIPKITTENS_INLINE const Step* lds_fault(Wave* wave, const Step* step, uint64_t outside, uint32_t distance) {
    const uint32_t lane = static_cast<uint32_t>(__builtin_ctzll(outside));
    const uint32_t base = reinterpret_cast<const uint32_t*>(at(wave, step->source[0]))[lane];
    return fault(wave, step, "LDS access outside the workgroup's allocation",
                 base + static_cast<uint32_t>(step->immediate) + distance, lane);
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
