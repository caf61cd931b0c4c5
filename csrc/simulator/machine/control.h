// simulator/machine/control.h: branches, waits, barriers and the end of a wave.
// SPDX-License-Identifier: MIT
#pragma once

#include "isa/instruction.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator {

enum class Control : uint8_t { none, falls_through, branch, ends };

// Emits the step if the machine itself handles this instruction. `branch`: Step::immediate holds the target's
// byte address within the text and must be converted to a distance in steps once all steps are known.
Control bind_control(const isa::Instruction& instruction, StepBuilder& builder);

// Increments the workgroup's count of the block in Step::immediate.
const Step* count_block(Wave* wave, const Step* step);
// For bytes that are not an instruction, and instructions without a meaning.
const Step* fault_unknown_bytes(Wave* wave, const Step* step);
const Step* fault_no_meaning(Wave* wave, const Step* step);
const Step* fault_missing_register(Wave* wave, const Step* step);

}  // namespace hipkittens::simulator
