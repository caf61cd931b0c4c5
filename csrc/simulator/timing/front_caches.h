// simulator/timing/front_caches.h: the instruction cache and the scalar cache of a pair of compute units.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include "simulator/timing/memory_system.h"
#include "simulator/timing/tag_array.h"
#include "simulator/timing/wave_trace.h"

namespace hipkittens::simulator::timing {

class FrontCaches {
  public:
    FrontCaches(const Parameters& parameters, MemorySystem& memory, uint32_t xcd)
        : parameters_(parameters),
          memory_(memory),
          xcd_(xcd),
          instructions_(static_cast<uint64_t>(parameters.instruction_cache_bytes) / scalar_line_bytes, 8),
          scalars_(static_cast<uint64_t>(parameters.scalar_cache_bytes) / scalar_line_bytes, 8) {}

    // When a wave that continues with the 64 bytes of `line` at `time` has its instructions. The following
    // lines are prefetched.
    double fetch(uint64_t line, double time) {
        if (parameters_.instruction_cache_starts_warm != 0) return time;
        const double ready = std::max(time + parameters_.instruction_hit, bring(line, time));
        // The lines prefetched with the previous one are in flight: only one more is new.
        const uint64_t ahead = static_cast<uint64_t>(parameters_.instruction_prefetch);
        for (uint64_t next = line == last_ + 1 ? line + ahead : line + 1; next <= line + ahead; ++next)
            bring(next, time);
        last_ = line;
        return ready;
    }

    double load(uint64_t first, uint32_t lines, double time) {
        double ready = time + parameters_.scalar_hit;
        port_ = std::max(port_, time) + lines;
        for (uint64_t line = first; line < first + lines; ++line) {
            const size_t known = scalars_.find(line, line);
            double there = 0;
            if (known != TagArray::none) {
                there = scalars_.ready(known);
            } else {
                // The time L2 takes to answer a hit is the vector cache's; the measured scalar miss time
                // replaces it.
                there = memory_.read(xcd_, line / 2, port_) - parameters_.l2_hit + parameters_.scalar_hit +
                        parameters_.scalar_miss;
                scalars_.fill(scalars_.oldest(line), line, there, false);
            }
            ready = std::max({ready, there, port_ + parameters_.scalar_hit});
        }
        return ready;
    }

  private:
    double bring(uint64_t line, double time) {
        const size_t known = instructions_.find(line, line);
        if (known != TagArray::none) return instructions_.ready(known);
        const double ready = memory_.read(xcd_, line / 2, time, parameters_.code_starts_in_mall != 0);
        instructions_.fill(instructions_.oldest(line), line, ready, false);
        return ready;
    }

    const Parameters parameters_;
    MemorySystem& memory_;
    uint32_t xcd_;
    TagArray instructions_, scalars_;
    double port_ = 0;
    uint64_t last_ = ~uint64_t{1};  // the line that a wave last continued with
};

}  // namespace hipkittens::simulator::timing
