// simulator/execute/matrix_scaled.h: gfx950's products of 8-, 6- and 4-bit floats, with or without block
// scales.
// SPDX-License-Identifier: MIT
#pragma once

#include "isa/instruction.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator {

// Step::immediate of these instructions; Step::extra[0] and [1] are the offsets of the scales, stride[0] and
// [1] their strides.
struct ScaledControl {
    uint32_t a_format : 3, b_format : 3, a_byte : 2, b_byte : 2, is_scaled : 1, copies_c : 1, unused : 20;
};

#if defined(HIPKITTENS_HOST_LEVEL)
namespace HIPKITTENS_HOST_LEVEL {

// v_mfma_f32_*_f8f6f4 and v_mfma_scale_f32_*_f8f6f4. False: neither of these, or formats that do not exist.
bool bind_scaled_matrix(const isa::Instruction& instruction, StepBuilder& builder);

}  // namespace HIPKITTENS_HOST_LEVEL
#endif

}  // namespace hipkittens::simulator
