// simulator/execute/matrix_scaled.h: gfx950's products of 8-, 6- and 4-bit floats, with or without block
// scales. SPDX-License-Identifier: MIT
#pragma once

#include "isa/instruction.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// v_mfma_f32_*_f8f6f4 and v_mfma_scale_f32_*_f8f6f4. False: none of these, or formats that do not exist.
bool bind_scaled_matrix(const isa::Instruction& instruction, StepBuilder& builder);

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
