// simulator/machine/step.h: what the run loop executes: an instruction, or a part of one, with its operands
// resolved.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simulator/machine/wave.h"

namespace hipkittens::simulator {

// A handler performs one step and returns the next one, or nullptr when the wave has to stop (its status
// gives the reason and wave->next the step to resume at). Most return step + 1.
using Handler = const Step* (*)(Wave*, const Step*);

// One instruction becomes one or a few steps: modifiers (neg, abs, DPP, SDWA, op_sel, clamp, omod) are
// separate steps before and after the operation, which is therefore independent of them.
struct alignas(64) Step {
    Handler handler = nullptr;
    uint32_t destination = 0;        // byte offset in the wave block
    uint32_t source[3] = {0, 0, 0};  // byte offsets in the wave block
    uint8_t stride[3] = {0, 0, 0};   // 64: a VGPR row, one dword per lane; 0: the same dword for all lanes
    uint8_t dwords = 0;              // memory: registers moved
    int32_t immediate = 0;           // simm16, memory offset, branch distance in steps
    uint32_t extra[3] = {0, 0, 0};   // defined by the handler
    uint32_t instruction = 0;        // index into the program's instructions
    const void* data = nullptr;      // defined by the handler
};
static_assert(sizeof(Step) == 64, "one step is one cache line");

// The second register of a 64-bit operand.
static constexpr uint32_t next_register(uint32_t offset, uint8_t stride, uint32_t count = 1) {
    return offset + count * (stride ? layout::vector_row_bytes : layout::scalar_row_bytes);
}

}  // namespace hipkittens::simulator
