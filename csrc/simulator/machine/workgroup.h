// simulator/machine/workgroup.h: state shared by the waves of one workgroup, and by the workgroups of one
// launch.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulator/machine/settings.h"
#include "simulator/machine/wave.h"

namespace hipkittens::simulator {

struct Program;
class Recording;
class LaunchTrace;
class Debugger;
struct WorkgroupTrace;
class StopRequest;
namespace checks {
struct WorkgroupShadow;
struct LaunchShadow;
}  // namespace checks

// Memory that a launch may touch. Guest addresses are host addresses.
struct Region {
    uint64_t begin = 0, end = 0;
    const char* name = "";
    bool writable = true;
    bool is_own = false;     // the launch's code or arguments: not part of a tensor
    uint32_t unwritten = 0;  // not 0: the value of every dword before anything was written
};

struct Counters {
    uint64_t lds_conflict_cycles = 0;  // modelled: phases beyond the conflict-free number
    uint64_t lds_accesses = 0;         // wave instructions that accessed LDS
    uint64_t global_bytes_loaded = 0, global_bytes_stored = 0;
};

// One launch. Regions are sorted by begin and do not overlap.
struct Dispatch {
    const Program* program = nullptr;
    const char* kernel_name = "";
    const Step* entry = nullptr;
    Settings settings;
    uint32_t grid_workgroups[3] = {1, 1, 1};
    uint32_t workgroup_size[3] = {1, 1, 1};
    uint32_t xccs = 8;
    uint32_t lds_bytes = 0;  // static + dynamic
    const uint8_t* kernel_arguments = nullptr;
    std::vector<Region> regions;
    std::string (*freed_at)(uint64_t address) = nullptr;  // name of the freed allocation there, or ""
    StopRequest* stop = nullptr;
    Recording* recording = nullptr;          // null unless this launch is recorded
    checks::LaunchShadow* shadow = nullptr;  // only under checks
    LaunchTrace* trace = nullptr;            // only in a traced launch
    Debugger* debugger = nullptr;            // only in a debugged launch
};

struct Workgroup {
    const Dispatch* dispatch = nullptr;
    uint32_t id[3] = {0, 0, 0};
    uint32_t linear_id = 0;
    std::vector<Wave*> waves;
    bool shares_l1 = true;  // its waves run on one compute unit: not built for tgsplit
    uint8_t* lds = nullptr;
    uint64_t* block_counts =
        nullptr;  // executions of each block of the program, by all workgroups of a worker
    Counters counters;
    checks::WorkgroupShadow* shadow = nullptr;  // only under checks
    WorkgroupTrace* trace = nullptr;            // only in a traced launch
};

// Marks the wave as faulted at `step` and returns nullptr, for `return fault(...)` in a handler. `reason` is
// a string literal.
const Step* fault(Wave* wave, const Step* step, const char* reason, uint64_t address = 0, uint32_t lane = 0);

// A load has passed the check of its buffer descriptor, and `lanes` of it reach past the memory of the
// launch, the first at `address`: returns whether they read 0, or ends the launch.
bool tolerates_overread(Wave* wave, const Step* step, uint64_t address, uint64_t lanes = 1);

// The region that contains [address, address + bytes), or nullptr. Remembers the hit in wave->last_region.
const Region* find_region(Wave* wave, uint64_t address, uint64_t bytes);

}  // namespace hipkittens::simulator
