// simulator/debug/register_digests.cpp: one number for everything that a wave's instructions read from registers.
// SPDX-License-Identifier: MIT
#include "simulator/debug/register_digests.h"

#include "isa/effects.h"
#include "simulator/debug/wave_numbers.h"

namespace hipkittens::simulator::debug {

void RegisterDigests::launch_begins(const Dispatch& dispatch, const code_object::Kernel&, const Replay&) {
    sources_.emplace(*dispatch.program);
    of_waves.assign(waves_of_launch(dispatch), 0);
}

void RegisterDigests::before_instruction(Wave* wave) {
    const isa::Instruction& instruction =
        wave->workgroup->dispatch->program->instructions[wave->next->instruction];
    // Arguments are at different addresses in every launch. The result of a scalar load counts where it is
    // read.
    const bool counts = instruction.row && isa::effects(instruction).unit != isa::Unit::smem;
    uint64_t& digest = of_waves[number_of(*wave)];
    for (const uint32_t word : {instruction.address, counts ? sources_->digest(*wave) : 0}) {
        digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
        digest ^= digest >> 32;
    }
}

void RegisterDigests::launch_ends(const std::string&) { sources_.reset(); }

}  // namespace hipkittens::simulator::debug
