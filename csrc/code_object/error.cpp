// code_object/error.cpp: the text of an error.
// SPDX-License-Identifier: MIT
#include "code_object/error.h"

#include <cstdio>

namespace hipkittens::code_object {

static std::string hexadecimal(uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

Error::Error(const std::string& what, uint64_t file_offset, const std::string& advice)
    : std::runtime_error("code object: " + what + " (at byte " + hexadecimal(file_offset) + "); " + advice),
      file_offset_(file_offset) {}

}  // namespace hipkittens::code_object
