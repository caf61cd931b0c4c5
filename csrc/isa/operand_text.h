// isa/operand_text.h: text of registers, constants and immediate fields, as LLVM prints them. Private to this
// module.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "isa/table.h"

namespace hipkittens::isa {

std::string hexadecimal(int64_t value);  // 0x1f, -0x1f
std::string register_text(const Operand& operand, uint32_t literal);
std::string immediate_text(Kind kind, Encoding encoding, int32_t value);
std::string literal_field_text(Encoding encoding, uint32_t value);  // a literal that is always present
std::string swizzle_text(uint32_t offset);                          // ds_swizzle_b32
std::string buffer_format_text(uint32_t format);                    // MTBUF
std::string dpp_control_text(uint32_t control);
const char* sdwa_select_text(uint32_t select);

}  // namespace hipkittens::isa
