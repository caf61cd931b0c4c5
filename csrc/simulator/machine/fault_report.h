// simulator/machine/fault_report.h: describes a wave's fault for the person who has to fix it.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

struct Program;

// Kernel, workgroup, wave, lane, instruction text with its offset, reason, address, nearest region and
// distance.
std::string describe_fault(const Wave& wave);

// The source position of an instruction: "csrc/tiles/intrinsics.h:98", and the call that the compiler inlined
// there, such as "csrc/kernels/gemm/gemm.h:36" (code_object/line_table.h). Each is "" if the code object has
// no such information.
struct SourcePlace {
    std::string line, called_from;

    // "csrc/tiles/intrinsics.h:98, called from csrc/kernels/gemm/gemm.h:36"
    std::string text() const { return called_from.empty() ? line : line + ", called from " + called_from; }
};

// The parts of that line.
const char* instruction_name(const isa::Instruction& instruction);
std::string instruction_text(const Program& program, const isa::Instruction& instruction);
// "lane 3, address 0x10; nearest allocation ...", or "" if the fault has no address.
std::string describe_address(const Wave& wave);
std::string describe_address(const Wave& wave, uint64_t address, uint32_t lane);
SourcePlace source_of(const Program& program, uint32_t instruction);

// The same position line for a wave that has not faulted (watchdog reports).
std::string describe_place(const Wave& wave, const Step* step);

}  // namespace hipkittens::simulator
