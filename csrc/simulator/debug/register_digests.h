// simulator/debug/register_digests.h: one number for all that a wave's instructions read from registers.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "simulator/debug/source_registers.h"
#include "simulator/machine/debugger.h"

namespace hipkittens::simulator::debug {

// Follows a launch. Two launches of code that differs in constants alone, with equal digests and equal memory behind them, did the
// same: what an instruction does depends on its registers, and what it leaves in others is read by later ones or by nobody.
class RegisterDigests : public Debugger {
  public:
    void launch_begins(const Dispatch& dispatch, const code_object::Kernel& kernel,
                       const Replay& replay) override;
    void before_instruction(Wave* wave) override;
    void wave_stopped(Wave*) override {}
    void launch_ends(const std::string& error) override;

    std::vector<uint64_t> of_waves;  // workgroup after workgroup

  private:
    std::optional<SourceRegisters> sources_;
};

}  // namespace hipkittens::simulator::debug
