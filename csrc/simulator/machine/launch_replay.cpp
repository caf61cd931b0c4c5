// simulator/machine/launch_replay.cpp: runs a debugged launch's grid again while the launch is in progress.
// SPDX-License-Identifier: MIT
#include "simulator/machine/launch_replay.h"

#include <algorithm>
#include <cstring>

#include "simulator/checks/shadow.h"
#include "simulator/machine/host_float_mode.h"
#include "simulator/machine/program.h"

namespace hipkittens::simulator {

MemoryCopy::MemoryCopy(const std::vector<Region>& regions) {
    for (const Region& region : regions) {
        if (!region.writable) continue;
        const auto* begin = reinterpret_cast<const uint8_t*>(region.begin);
        parts_.push_back({region, {begin, begin + (region.end - region.begin)}});
    }
}

void MemoryCopy::restore() const {
    for (const Part& part : parts_)
        std::memcpy(reinterpret_cast<void*>(part.region.begin), part.bytes.data(), part.bytes.size());
}

namespace {

class RestoredMemory {
  public:
    explicit RestoredMemory(const MemoryCopy& before) : before_(before) {}
    ~RestoredMemory() { before_.restore(); }
    RestoredMemory(const RestoredMemory&) = delete;

  private:
    const MemoryCopy& before_;
};

}  // namespace

std::string LaunchReplay::run(Debugger& follower, uint64_t wave_order_seed) {
    std::optional<MemoryCopy> present;  // where it differs from the initial contents
    if (initial_) {
        present.emplace(grid_.dispatch.regions);
        initial_->restore();
    } else {
        initial_.emplace(grid_.dispatch.regions);
    }
    const RestoredMemory restored(present ? *present : *initial_);
    const HostFloatMode float_mode(grid_.kernel.float_mode);

    Dispatch dispatch = grid_.dispatch;
    dispatch.settings.wave_order_seed = wave_order_seed;
    dispatch.settings.checks = 0;
    const std::shared_ptr<const Program> program = code_.program(grid_.kernel, dispatch.settings);
    dispatch.program = program.get();
    dispatch.entry = program->step_for_address(code_.run_address(grid_.kernel.start_address));
    dispatch.trace = nullptr;
    dispatch.recording = nullptr;
    dispatch.debugger = &follower;
    checks::LaunchShadow shadow;
    dispatch.shadow = &shadow;
    StopRequest stop(should_stop_, false);
    dispatch.stop = &stop;

    Grid grid(dispatch, grid_.kernel, grid_.dispatch_packet, grid_.workgroup_count, grid_.resident_limit,
              stop);
    follower.launch_begins(dispatch, grid_.kernel, nullptr);
    run_worker(grid);
    if (grid.error.empty() && stop.was_interrupted()) grid.error = "interrupted by a signal";
    follower.launch_ends(grid.error);
    return grid.error;
}

}  // namespace hipkittens::simulator
