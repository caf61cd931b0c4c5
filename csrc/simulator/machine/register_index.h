// simulator/machine/register_index.h: relative register addressing: M0 as an index into VGPRs, AGPRs and SGPRs.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "isa/instruction.h"
#include "simulator/machine/step_builder.h"

namespace hipkittens::simulator {

// s_set_gpr_idx_*, s_setvskip and s_movrel*. False: not such an instruction.
bool bind_register_index(const isa::Instruction& instruction, StepBuilder& builder);

// While MODE.GPR_IDX_EN is set, an instruction of the vector ALU refers to other registers: it is bound once
// for every index encountered, and those steps are kept. Shared by all workers of a program.
class IndexedSteps {
  public:
    const std::vector<Step>* find(uint64_t key) const;
    const std::vector<Step>* add(uint64_t key, std::vector<Step> steps);

  private:
    mutable std::shared_mutex mutex_;
    std::unordered_map<uint64_t, std::unique_ptr<const std::vector<Step>>> steps_;
};

// Whether M0 can index the registers of this instruction.
bool is_indexable(const isa::Instruction& instruction);
// Placed before an indexable instruction: runs the steps for the index in M0 if indexing is enabled.
const Step* run_indexed(Wave* wave, const Step* step);

// Placed before vector instructions: advances by Step::immediate steps if MODE.VSKIP is set.
const Step* skip_vector(Wave* wave, const Step* step);

}  // namespace hipkittens::simulator
