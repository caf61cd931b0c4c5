// isa/decode.h: decodes bytes of a code object to an Instruction.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/instruction.h"

namespace hipkittens::isa {

// Decodes the instruction that starts at bytes[0]; `size` bytes are readable. `address` is copied into the
// result. Returns false if the bytes are not an instruction of `target` with a row here, or extend past
// `size`: nothing is guessed.
bool decode(Target target, const uint8_t* bytes, size_t size, uint32_t address, Instruction* instruction);

}  // namespace hipkittens::isa
