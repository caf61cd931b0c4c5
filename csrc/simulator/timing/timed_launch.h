// simulator/timing/timed_launch.h: one launch in the cycle model: traces come in from the workers, cycles go out.
// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "simulator/machine/launch_trace.h"
#include "simulator/timing/compute_unit.h"
#include "simulator/timing/parameters.h"

namespace hipkittens::simulator::timing {

struct Options {
    Device device = Device::mi355x;
    Parameters parameters;
    double clock_mhz = 0;  // 0: assumed_clock
    bool full = false;     // all XCDs in detail; else the first, and echoes of it
    bool values = true;    // compute what is stored
};

// Traces of finished workgroups, from the workers to the model.
class TraceStore {
  public:
    void wait_for_room(uint32_t workgroup);
    void put(std::unique_ptr<WorkgroupTrace> trace);
    std::unique_ptr<WorkgroupTrace> take(uint32_t workgroup);  // waits; nullptr when it will not come
    void finish();
    void want_until(uint32_t workgroup);  // those before it may start
    void abandon();                       // nobody takes any more

  private:
    std::mutex mutex_;
    std::condition_variable put_, wanted_;
    std::map<uint32_t, std::unique_ptr<WorkgroupTrace>> traces_;
    uint32_t wanted_until_ = 0;
    bool finished_ = false, abandoned_ = false;
};

class TimedLaunch : public LaunchTrace {
  public:
    explicit TimedLaunch(const Options& options) : options_(options) {}

    const TraceSteps& steps() const override;
    void wait_for_room(uint32_t workgroup) override { store_.wait_for_room(workgroup); }
    void begin(Workgroup& workgroup) override;
    void end(Workgroup& workgroup) override;
    void finish() override { store_.finish(); }
    void consume(const Dispatch& dispatch, const code_object::Kernel& kernel) override;

    // JSON of what was modelled, or empty if the launch ended early.
    const std::string& report() const { return report_; }
    const std::string& error() const { return error_; }

  private:
    const Options options_;
    TraceStore store_;
    std::string report_, error_;
};

}  // namespace hipkittens::simulator::timing
