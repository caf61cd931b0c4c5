// simulator/timing/echo.h: XCDs that are not simulated in detail, but whose loads and stores use the shared memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "simulator/timing/compute_unit.h"
#include "simulator/timing/recent_lines.h"

namespace hipkittens::simulator::timing {

// Workgroup 8 j + y of the grid runs in detail on XCD y; 8 j + x runs at the same position of XCD x. When a
// wave of the first has issued its n-th vector memory access, the same wave of the others issues its own n-th
// (in proportion, if their counts differ).
class Echo {
  public:
    Echo(const Parameters& parameters, MemorySystem& memory);

    void play(ResidentWorkgroup& workgroup, uint32_t compute_unit, uint32_t wave, uint32_t accesses,
              double time);
    // Plays the remaining accesses of a workgroup that ends.
    void play_rest(ResidentWorkgroup& workgroup, uint32_t compute_unit, double time);

  private:
    void play_until(ResidentWorkgroup& workgroup, size_t echo, uint32_t compute_unit, uint32_t wave,
                    size_t end, double time);

    const Parameters& parameters_;
    MemorySystem& memory_;
    std::vector<std::vector<RecentLines>> caches_;  // [xcd][compute unit]
};

}  // namespace hipkittens::simulator::timing
