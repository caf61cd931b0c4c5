// simulator/machine/mode_regions.h: the parts of a program in which MODE may have VGPR indexing or VSKIP enabled.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "isa/instruction.h"

namespace hipkittens::simulator {

// Bits of MODE (LLVM: AMDGPU::Hwreg; ISA manual, "Mode Register").
inline constexpr uint32_t mode_gpr_index_enabled = 1u << 27, mode_vskip = 1u << 28;

// For every instruction, which of these bits may be set when it is reached. Instructions where none may be
// set run without a test, so that a program that uses neither pays nothing.
std::vector<uint32_t> find_mode_regions(const std::vector<isa::Instruction>& instructions);

}  // namespace hipkittens::simulator
