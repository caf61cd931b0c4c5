// simulator/execute/matrix_sparse.h: products with a structured sparse A (v_smfmac_*).
// SPDX-License-Identifier: MIT
#pragma once

#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

// False: not such an instruction.
bool bind_sparse_matrix(const isa::Instruction& instruction, StepBuilder& builder);

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
