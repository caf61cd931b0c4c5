// simulator/execute/operand_modifiers.h: neg, abs, op_sel, SDWA, DPP, omod and clamp as steps around an operation.
// SPDX-License-Identifier: MIT
//
// A modified source is built in scratch rows (two for each of the three sources) before the operation; a modified result goes
// to scratch rows and is merged into its register after it. DPP's write mask narrows EXEC for the duration.
#pragma once

#include "simulator/execute/lanes.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// Scratch rows in use: sources 0..5, result 6..9, EXEC saved by DPP 15.
inline constexpr int result_scratch_row = 6, saved_exec_scratch_row = 15;

// Emits the steps for the modifiers of source `index` and returns where the operand is afterwards. False: no
// such meaning.
bool modify_source(const isa::Instruction& instruction, StepBuilder& builder, const isa::Operand& operand,
                   int index, StepBuilder::Source* source);

// DPP's effect on the write: after the sources, before the operation. Returns whether end_dpp must follow it.
bool begin_dpp(const isa::Instruction& instruction, StepBuilder& builder);
void end_dpp(StepBuilder& builder);

// Which bits of the destination register a result of 32 bits or less replaces, and how they are placed.
struct Placement {
    uint32_t kept = 0;   // bits of the register that are preserved
    uint8_t width = 32;  // bits of the result
    uint8_t shift = 0;   // where they go
    bool sign_extend = false;
    bool is_plain() const { return width == 32; }
};

// Scales (omod) and clamps the result in the scratch rows, and writes it into the register at `destination`.
void finish_result(StepBuilder& builder, uint32_t destination, const isa::Operand& operand, uint8_t omod,
                   bool clamp, const Placement& placement);

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
