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

    // When a wave that goes on to the 64 bytes of `line` at `time` has its instructions. The lines behind come along.
    double fetch(uint64_t line, double time) {
        double ready = time;
        const uint64_t ahead = static_cast<uint64_t>(parameters_.instruction_prefetch);
        for (uint64_t next = line; next <= line + ahead; ++next) {
            TagArray::Line* known = instructions_.find(next, next);
            if (!known) {
                known = &instructions_.oldest(next);
                known->tag = next;
                known->ready = memory_.read(xcd_, next / 2, time);
            }
            if (next == line) ready = std::max(time + parameters_.instruction_hit, known->ready);
        }
        return ready;
    }

    double load(uint64_t first, uint32_t lines, double time) {
        double ready = time + parameters_.scalar_hit;
        port_ = std::max(port_, time) + lines;
        for (uint64_t line = first; line < first + lines; ++line) {
            TagArray::Line* known = scalars_.find(line, line);
            if (!known) {
                known = &scalars_.oldest(line);
                known->tag = line;
                // L2's time to answer a hit is the vector cache's; what a scalar miss measures replaces it.
                known->ready = memory_.read(xcd_, line / 2, port_) - parameters_.l2_hit +
                               parameters_.scalar_hit + parameters_.scalar_miss;
            }
            ready = std::max({ready, known->ready, port_ + parameters_.scalar_hit});
        }
        return ready;
    }

  private:
    const Parameters parameters_;
    MemorySystem& memory_;
    uint32_t xcd_;
    TagArray instructions_, scalars_;
    double port_ = 0;
};

}  // namespace hipkittens::simulator::timing
