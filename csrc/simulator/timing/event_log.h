// simulator/timing/event_log.h: instruction-by-instruction events of some compute units.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/timing/stalls.h"

namespace hipkittens::simulator::timing {

struct TimelineEvent {
    double begin = 0;    // clk
    float duration = 0;  // clk of its unit; for a wave: from its start to its end
    float stalled = 0;   // clk that the wave waited for it
    float latency = 0;   // memory: clk until its wait counter is decremented
    uint32_t address = 0, workgroup = 0;
    uint16_t compute_unit = 0, lds_conflicts = 0;
    uint8_t simd = 0, wave = 0;  // wave: of its workgroup
    uint8_t is_wave = 0;         // 1: the lifetime of a wave, without an instruction
    uint8_t unit = 0;
    uint32_t stall = 0;
};
static_assert(sizeof(TimelineEvent) == 40);

// Covers the first `compute_units` of one XCD; ends when it is full.
class EventLog {
  public:
    EventLog(uint32_t xcd, uint32_t compute_units) : xcd_(xcd), compute_units_(compute_units) {}

    bool wants(uint32_t xcd, uint32_t compute_unit) const {
        return xcd == xcd_ && compute_unit < compute_units_ && events_.size() < most;
    }
    void add(const TimelineEvent& event) { events_.push_back(event); }
    bool is_full() const { return events_.size() >= most; }
    std::vector<TimelineEvent>& events() { return events_; }

  private:
    static constexpr size_t most = size_t{1} << 23;
    uint32_t xcd_, compute_units_;
    std::vector<TimelineEvent> events_;
};

}  // namespace hipkittens::simulator::timing
