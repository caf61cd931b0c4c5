// simulator/debug/order_comparison.h: where a launch diverges from the same launch under another order of waves.
// SPDX-License-Identifier: MIT
//
// The result of a kernel must not depend on the order of waves, within what its barriers and waits allow. The other run is recorded
// first: for each instruction of each wave its address, and a digest of the registers it reads. Then the launch itself is compared
// with the record, so that the first instruction that operates on different values is found before it runs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "simulator/checks/register_effects.h"
#include "simulator/debug/source_registers.h"
#include "simulator/json_text.h"
#include "simulator/machine/debugger.h"
#include "simulator/machine/launch_replay.h"

namespace hipkittens::simulator::debug {

class OrderComparison {
  public:
    // Runs the launch under that order. Throws std::length_error if it is too long to record.
    OrderComparison(const Dispatch& dispatch, const Replay& replay, uint64_t wave_order_seed);
    ~OrderComparison();

    const std::string& error() const;  // of the other run, or ""
    uint64_t instructions() const;     // that it executed

    // Called before each instruction of each wave. Returns JSON of the differences at the first instruction
    // of a wave that has any, otherwise "".
    std::string before_instruction(const Wave& wave);

    // Called once the launch has ended: writes the members of an array, the memory in which the two runs left
    // different bytes.
    void write_memory_differences(JsonText& json) const;

  private:
    class Recorder;
    class Capture;
    // The progress of a wave of the launch itself.
    struct Progress {
        uint32_t instructions = 0;
        bool has_parted = false;
        // The last instruction that wrote each register, plus 1.
        std::array<uint32_t, checks::register_count> written_by{};
    };

    std::string describe_registers(const Wave& wave, uint32_t position);

    const Dispatch& dispatch_;
    Replay replay_;
    uint64_t wave_order_seed_;
    SourceRegisters sources_;
    std::unique_ptr<Recorder> recorded_;
    std::vector<std::unique_ptr<Progress>> progress_;  // by number in the launch; null before a wave begins
};

}  // namespace hipkittens::simulator::debug
