// simulator/timing/chip.h: the compute units of a chip, and the dispatcher that assigns workgroups to them.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "code_object/kernel.h"
#include "simulator/json_text.h"
#include "simulator/machine/workgroup.h"
#include "simulator/timing/compute_unit.h"
#include "simulator/timing/echo.h"
#include "simulator/timing/timed_launch.h"

namespace hipkittens::simulator::timing {

// The number of workgroups of a kernel that fit on a compute unit, and what limits it.
struct Occupancy {
    uint32_t workgroups_per_compute_unit = 1, waves_per_workgroup = 1;
    const char* limited_by = "waves";  // registers, lds, waves, workgroups
};
Occupancy occupancy_of(const Parameters& parameters, const code_object::Kernel& kernel, uint32_t waves,
                       uint32_t lds_bytes);

class Chip {
  public:
    // `xcd` is the one simulated in detail, unless all are.
    Chip(const Options& options, double clock_mhz, uint32_t xcd, const Dispatch& dispatch,
         const code_object::Kernel& kernel);
    ~Chip();

    bool run(TraceStore& store, int reader);  // false: a trace is missing because the launch failed

    double cycles() const { return end_; }
    double clock_mhz() const { return clock_mhz_; }
    double matrix_load() const;  // fraction of the time in which the matrix cores work
    const Options& options() const { return options_; }
    MatrixType matrix_type() const { return matrix_type_; }
    EventLog& events() { return events_; }
    void describe(JsonText& json) const;  // all members of the report except the times

  private:
    // Workgroup i goes to XCD i mod 8, there to the SEs round-robin, and within an SE to its CUs round-robin.
    struct Xcd {
        uint32_t index = 0;
        uint32_t next_workgroup = 0;
        uint32_t turn = 0;      // position in the dispatcher's order of compute units
        double dispatcher = 0;  // when it is free
        std::vector<std::unique_ptr<FrontCaches>> front;
        std::vector<std::unique_ptr<ComputeUnit>> units;
        std::vector<double> room_since;  // when the latest slot on a compute unit became free
        std::vector<uint32_t> order;
    };

    bool place(Xcd& xcd, TraceStore& store, bool* failed);
    std::unique_ptr<ResidentWorkgroup> resident(Xcd& xcd, TraceStore& store);

    const Options options_;
    int reader_ = 0;
    const Parameters& parameters_;
    const Dispatch& dispatch_;
    const code_object::Kernel& kernel_;
    uint32_t workgroup_count_;
    Occupancy occupancy_;
    std::vector<Cost> costs_;
    std::vector<InstructionCounts> counts_;
    MatrixType matrix_type_ = MatrixType::none;
    double clock_mhz_ = 0;
    MemorySystem memory_;
    EventLog events_;
    Replay replay_;
    std::unique_ptr<Echo> echo_;
    std::vector<Xcd> xcds_;
    double end_ = 0, execution_end_ = 0, last_start_ = 0;
    std::vector<double> durations_;
};

}  // namespace hipkittens::simulator::timing
