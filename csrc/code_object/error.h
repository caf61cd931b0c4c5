// code_object/error.h: the exception of this module.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace hipkittens::code_object {

// "code object: <what is wrong> (at byte 0x..); <what to do>".
class Error : public std::runtime_error {
  public:
    Error(const std::string& what, uint64_t file_offset, const std::string& advice);
    uint64_t file_offset() const { return file_offset_; }

  private:
    uint64_t file_offset_;
};

}  // namespace hipkittens::code_object
