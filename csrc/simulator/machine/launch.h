// simulator/machine/launch.h: runs a grid of workgroups and reports the result.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulator/machine/loaded_code.h"
#include "simulator/machine/recording.h"
#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator {

struct LaunchRequest {
    uint32_t grid_workgroups[3] = {1, 1, 1};
    uint32_t workgroup_size[3] = {64, 1, 1};
    uint32_t dynamic_lds_bytes = 0;
    const void* arguments = nullptr;  // the kernel argument segment, hidden arguments filled in
    size_t argument_bytes = 0;
    std::vector<Region> regions;  // memory the kernel may touch besides its own code object and arguments
    std::string (*freed_at)(uint64_t address) = nullptr;  // name of the freed allocation there, or ""
    bool (*should_stop)() = nullptr;  // polled in the launching thread: true ends the launch
    Settings settings;
    LaunchTrace* launch_trace = nullptr;  // follows the launch; its steps are settings.trace
    Debugger* debugger = nullptr;         // follows the launch, which then uses one thread
    bool record = false;                  // fill LaunchResult::record
    bool trace = false;                   // including its trace
    uint32_t compute_units = 304;         // limits how many workgroups can be resident together
    uint32_t xccs = 8;                    // workgroup i runs on XCC i % xccs
    uint32_t lds_bytes_per_compute_unit = 65536;
};

struct Report {
    uint64_t instructions = 0, workgroups = 0, waves = 0;
    uint64_t mfma = 0, valu = 0, salu = 0, lds = 0, vector_memory = 0,
             other = 0;  // wave instructions by unit
    Counters counters;
    double seconds = 0;
};

struct LaunchResult {
    std::string error;  // empty if the grid completed
    Report report;
    LaunchRecord record;
};

// Workgroups are distributed to the workers in linear order (x fastest). After an error no further workgroups
// start; memory written until then stays written.
LaunchResult launch(LoadedCode& code, const code_object::Kernel& kernel, const LaunchRequest& request);

}  // namespace hipkittens::simulator
