// simulator/execute/buffer_format.h: buffer loads and stores that convert.
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// False: not such an instruction.
bool bind_formatted_buffer(const isa::Instruction& instruction, StepBuilder& builder);

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
