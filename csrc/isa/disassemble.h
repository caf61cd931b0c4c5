// isa/disassemble.h: converts an Instruction to the text that LLVM's assembler reads and its disassembler prints.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "isa/instruction.h"

namespace hipkittens::isa {

// Text such as `v_fma_f32 v1, -v2, |v3|, s4 clamp`. Branch targets print as the encoded simm16.
std::string disassemble(const Instruction& instruction);

// Its first word: `v_fma_f32`, `v_mov_b32_e32`, `v_mul_f32_dpp`.
std::string mnemonic_text(const Instruction& instruction);

}  // namespace hipkittens::isa
