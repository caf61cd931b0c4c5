// simulator/machine/step.h: what the run loop executes: an instruction, or a part of one, with its operands
// resolved.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simulator/machine/wave.h"

namespace hipkittens::simulator {

// A handler does one step and returns the next one, or nullptr when the wave has to stop (its status says why
// and wave->next where to resume). Most return step + 1.
using Handler = const Step* (*)(Wave*, const Step*);

// One instruction becomes one step, or a few: modifiers (neg, abs, DPP, SDWA, op_sel, clamp, omod) are steps
// of their own in front of and behind the operation, which therefore never knows about them.
struct alignas(64) Step {
    Handler handler = nullptr;
    uint32_t destination = 0;        // byte offset in the wave block
    uint32_t source[3] = {0, 0, 0};  // byte offsets in the wave block
    uint8_t stride[3] = {0, 0, 0};   // 64: a VGPR row, one dword a lane; 0: the same dword for all lanes
    uint8_t dwords = 0;              // memory: registers moved
    int32_t immediate = 0;           // simm16, memory offset, branch distance in steps
    uint32_t extra[3] = {0, 0, 0};   // meaning belongs to the handler
    uint32_t instruction = 0;        // index into the program's instructions
    const void* data = nullptr;      // meaning belongs to the handler
};
static_assert(sizeof(Step) == 64, "one step is one cache line");

// The second register of a 64-bit operand.
static constexpr uint32_t next_register(uint32_t offset, uint8_t stride, uint32_t count = 1) {
    return offset + count * (stride ? layout::vector_row_bytes : layout::scalar_row_bytes);
}

}  // namespace hipkittens::simulator
