// simulator/debug/code_addresses.h: the position of an instruction in the code object as it was passed in.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simulator/machine/program.h"

namespace hipkittens::simulator::debug {

inline uint64_t file_address(const Program& program, uint32_t instruction) {
    return program.text_address + program.instructions[instruction].address - program.load_offset;
}

}  // namespace hipkittens::simulator::debug
