// simulator/execute/vector_special.h: vector instructions whose operands do not follow the common pattern.
// SPDX-License-Identifier: MIT
#pragma once

#include "isa/instruction.h"
#include "simulator/execute/lanes.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// Emits the steps of readlane, writelane, swaps and the like. False: not such an instruction.
bool bind_special(const isa::Instruction& instruction, StepBuilder& builder);

// The conversions of vector_scaled_convert.cpp. False: not such an instruction, or not with these modifiers.
bool bind_scaled_convert(const isa::Instruction& instruction, StepBuilder& builder);

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
