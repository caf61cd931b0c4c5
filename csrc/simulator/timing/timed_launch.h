// simulator/timing/timed_launch.h: one launch in the cycle model: traces come in from the workers, cycles go out.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "simulator/machine/launch_trace.h"
#include "simulator/timing/address_map.h"
#include "simulator/timing/compute_unit.h"
#include "simulator/timing/parameters.h"

namespace hipkittens::simulator::timing {

struct Options {
    Device device = Device::mi355x;
    Parameters parameters;
    double clock_mhz = 0;         // 0: the sustained clock
    bool full = false;            // all XCDs in detail; otherwise the first, with the others as echoes
    bool values = true;           // compute what is stored
    uint32_t timeline_units = 0;  // compute units of XCD 0 whose every instruction is recorded
};

// Passes traces of finished workgroups from the workers to one or two models of the chip.
class TraceStore {
  public:
    static constexpr int max_readers = 2;
    using Trace = std::shared_ptr<const WorkgroupTrace>;

    void set_readers(int count);             // called before the first reader takes anything
    bool wait_for_room(uint32_t workgroup);  // waits briefly
    void put(Trace trace);
    Trace take(uint32_t workgroup);  // waits; nullptr if it will not come
    // The first XCD with the most work, judged by the workgroups that may be traced at once. Waits for them.
    uint32_t heaviest_xcd(uint32_t xcds, uint32_t workgroup_count);
    void finish();
    void want_until(int reader, uint32_t workgroup);  // earlier workgroups may start
    void abandon();                                   // nothing is put or taken from now on

  private:
    std::mutex mutex_;
    std::condition_variable put_, wanted_;
    struct Kept {
        Trace trace;
        int takers;
    };
    std::map<uint32_t, Kept> traces_;
    int readers_ = 1;
    uint32_t wanted_until_[max_readers] = {};
    bool finished_ = false, abandoned_ = false;
};

class TimedLaunch : public LaunchTrace {
  public:
    explicit TimedLaunch(const Options& options) : options_(options) {}

    const TraceSteps& steps() const override;
    bool wait_for_room(uint32_t workgroup) override { return store_.wait_for_room(workgroup); }
    void begin(Workgroup& workgroup) override;
    void end(Workgroup& workgroup) override;
    void finish() override { store_.finish(); }
    void give_up() override { store_.abandon(); }
    void consume(const Dispatch& dispatch, const code_object::Kernel& kernel) override;

    // JSON of the modelled launch, or empty if the launch ended early.
    const std::string& report() const { return report_; }
    const std::string& error() const { return error_; }
    // At the clock that the report calls details_at_clock_mhz.
    std::vector<TimelineEvent> take_events() { return std::move(events_); }

  private:
    const Options options_;
    TraceStore store_;
    AddressMap addresses_;
    std::once_flag prepared_;
    std::vector<double> block_work_;     // clk, see WorkgroupTrace::work
    std::atomic<int> detailed_xcd_{-1};  // -1: not known yet, all are traced in detail
    std::mutex patterns_mutex_;
    // By wave of a workgroup: the effect of its instructions on LDS, reused for a later workgroup, where it
    // is mostly the same.
    std::vector<std::vector<std::vector<WaveTrace::Pattern>>> patterns_;
    std::string report_, error_;
    std::vector<TimelineEvent> events_;
};

}  // namespace hipkittens::simulator::timing
