// simulator/machine/launch_replay.h: runs a debugged launch's grid again while the launch is in progress.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "simulator/machine/debugger.h"
#include "simulator/machine/loaded_code.h"
#include "simulator/machine/worker.h"

namespace hipkittens::simulator {

// A copy of the memory that a launch may write.
class MemoryCopy {
  public:
    explicit MemoryCopy(const std::vector<Region>& regions);
    void restore() const;

    struct Part {
        Region region;
        std::vector<uint8_t> bytes;
    };
    const std::vector<Part>& parts() const { return parts_; }

  private:
    std::vector<Part> parts_;
};

// Implements Replay (debugger.h). Lives as long as the grid of the launch it replays; the first call must
// come before any wave has run.
class LaunchReplay {
  public:
    LaunchReplay(LoadedCode& code, const Grid& grid, bool (*should_stop)())
        : code_(code), grid_(grid), should_stop_(should_stop) {}

    std::string run(Debugger& follower, uint64_t wave_order_seed);

  private:
    LoadedCode& code_;
    const Grid& grid_;
    bool (*should_stop_)();
    std::optional<MemoryCopy> initial_;
};

}  // namespace hipkittens::simulator
