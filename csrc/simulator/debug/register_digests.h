// simulator/debug/register_digests.h: one number for everything that a wave's instructions read from registers.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "simulator/debug/source_registers.h"
#include "simulator/machine/debugger.h"

namespace hipkittens::simulator::debug {

// Follows a launch. Two launches of code that differs only in constants, with equal digests and equal memory afterwards, did the
// same: an instruction's effect depends on its registers, and what it leaves in others is read by later instructions or by none.
class RegisterDigests : public Debugger {
  public:
    void launch_begins(const Dispatch& dispatch, const code_object::Kernel& kernel,
                       const Replay& replay) override;
    void before_instruction(Wave* wave) override;
    void wave_stopped(Wave*) override {}
    void launch_ends(const std::string& error) override;

    std::vector<uint64_t> of_waves;  // in the order of workgroups

  private:
    std::optional<SourceRegisters> sources_;
};

}  // namespace hipkittens::simulator::debug
