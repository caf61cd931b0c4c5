// isa/opcode.h: one enumerator per mnemonic, generated from the rows of table/*.def.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace hipkittens::isa {

// The enumerator of `v_add_f32` is Opcode::v_add_f32: a mnemonic without the _e32/_e64/_dpp/_sdwa suffix, so
// that the same operation in two encodings is one opcode with one meaning.
enum class Opcode : uint16_t {
    invalid,
#define ROW(mnemonic, ...) mnemonic,
#include "isa/table/all.def"
#undef ROW
    count,
};

inline constexpr int opcode_count = static_cast<int>(Opcode::count);

}  // namespace hipkittens::isa
