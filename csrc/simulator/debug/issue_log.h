// simulator/debug/issue_log.h: which instructions issued the memory operations of a wave that are still in flight.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/machine/wave.h"

namespace hipkittens::simulator::debug {

// The log of one wave. Operations know their number but not their instruction, which only this log needs.
class IssueLog {
  public:
    // Called before each instruction of the wave: what was issued since belongs to the previous one.
    void follow(const Wave& wave);

    struct Operation {
        const char* queue;  // "vector memory", "lds", "scalar memory", or "flat" if one counter has passed it
        uint32_t instruction;  // index into the program's instructions
    };
    uint32_t last_instruction() const {
        return instruction_;
    }  // the one that the wave has begun or is about to begin
    std::vector<Operation> in_flight(const Wave& wave) const;

  private:
    static constexpr uint32_t kept = 256;  // more than all queues of a wave hold
    uint32_t issued_by_[kept] = {};        // by number
    uint32_t next_ = 0, instruction_ = 0;
};

}  // namespace hipkittens::simulator::debug
