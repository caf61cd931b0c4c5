// simulator/execute/scalar_state.h: s_getreg and s_setreg: the hardware registers a program may access.
// SPDX-License-Identifier: MIT
#pragma once

#include "isa/instruction.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// Emits s_getreg_b32, s_setreg_b32 or s_setreg_imm32_b32. False for a register that is not simulated.
bool bind_hardware_register(const isa::Instruction& instruction, StepBuilder& builder);

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
