// simulator/machine/mode_regions.h: where in a program MODE may have VGPR indexing or VSKIP switched on.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "isa/instruction.h"

namespace hipkittens::simulator {

// Bits of MODE (LLVM: AMDGPU::Hwreg; ISA manual, "Mode Register").
inline constexpr uint32_t mode_gpr_index_enabled = 1u << 27, mode_vskip = 1u << 28;

// For every instruction the ones of these bits that may be set when it is reached. Instructions where none may be
// run without asking, so that a program which uses neither pays nothing.
std::vector<uint32_t> find_mode_regions(const std::vector<isa::Instruction>& instructions);

}  // namespace hipkittens::simulator
