// simulator/debug/source_registers.h: the contents of the registers that an instruction is about to read.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "simulator/checks/register_effects.h"
#include "simulator/machine/program.h"
#include "simulator/machine/wave.h"

namespace hipkittens::simulator::debug {

// For one program. A vector register counts in the lanes enabled by EXEC, or in all lanes if the instruction
// ignores EXEC.
class SourceRegisters {
  public:
    explicit SourceRegisters(const Program& program);

    // Registers are numbered as in checks/register_effects.h.
    const checks::Effects& effects(uint32_t instruction);

    // The digest for the instruction at wave.next.
    uint32_t digest(const Wave& wave);

    struct Value {
        uint32_t number;               // of the register
        uint64_t lanes;                // lanes that count; a scalar has lane 0
        std::vector<uint32_t> dwords;  // of all lanes
    };
    std::vector<Value> values(const Wave& wave);

  private:
    template <typename Visit>
    void visit(const Wave& wave, Visit visit);

    const Program& program_;
    StepBuilder builder_;
    std::vector<std::optional<checks::Effects>> effects_;  // of the instructions that were queried
};

}  // namespace hipkittens::simulator::debug
