// simulator/machine/worker.h: one host thread that runs workgroups until the grid is done.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "simulator/machine/stop_request.h"
#include "simulator/machine/workgroup_slot.h"

namespace hipkittens::simulator {

// State shared by the workers of one launch.
struct Grid {
    Grid(const Dispatch& dispatch, const code_object::Kernel& kernel, const void* packet, uint32_t workgroups,
         uint32_t residents, StopRequest& stop)
        : dispatch(dispatch),
          kernel(kernel),
          dispatch_packet(packet),
          workgroup_count(workgroups),
          resident_limit(residents),
          stop(stop),
          block_counts(dispatch.program->blocks.size()) {}

    const Dispatch& dispatch;
    const code_object::Kernel& kernel;
    const void* dispatch_packet;
    uint32_t workgroup_count;
    uint32_t resident_limit;  // workgroups that the modelled chip holds at a time
    StopRequest& stop;
    std::atomic<uint32_t> next_workgroup{0};
    std::atomic<uint32_t> resident{0};
    std::mutex mutex;
    std::string error;  // of the faulted workgroup with the lowest id
    uint32_t error_workgroup = UINT32_MAX;
    std::vector<uint64_t> block_counts;  // sums over all finished workgroups
    Counters counters;
};

void run_worker(Grid& grid);

}  // namespace hipkittens::simulator
