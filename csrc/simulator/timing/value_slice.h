// simulator/timing/value_slice.h: determines which instructions control flow and addresses depend on.
// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "isa/instruction.h"

namespace hipkittens::simulator {
struct Program;
}

namespace hipkittens::simulator::timing {

// By instruction: whether anything visible to the cycle model can depend on its result. Computed by liveness
// over the program's branches, in which only conditions, addresses, EXEC and their inputs are needed. A load
// whose result is not needed still has its address traced. Values in global memory are assumed not to come
// from matrix instructions when they are loaded to form addresses.
std::vector<bool> needed_values(const Program& program);

bool is_scalar_access(const isa::Instruction& instruction);  // smem with an address
bool accesses_vector_memory(
    const isa::Instruction& instruction);  // through the vector cache: not cache control

}  // namespace hipkittens::simulator::timing
