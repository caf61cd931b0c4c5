// simulator/debug/wave_numbers.h: numbers the waves of a launch consecutively, workgroup by workgroup.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simulator/machine/workgroup.h"

namespace hipkittens::simulator::debug {

inline uint32_t waves_of_workgroup(const Dispatch& dispatch) {
    const uint32_t* size = dispatch.workgroup_size;
    return (size[0] * size[1] * size[2] + 63) / 64;
}

inline uint64_t waves_of_launch(const Dispatch& dispatch) {
    const uint32_t* grid = dispatch.grid_workgroups;
    return uint64_t{grid[0]} * grid[1] * grid[2] * waves_of_workgroup(dispatch);
}

inline uint64_t number_of(const Wave& wave) {
    const Workgroup& workgroup = *wave.workgroup;
    return uint64_t{workgroup.linear_id} * waves_of_workgroup(*workgroup.dispatch) + wave.index_in_workgroup;
}

}  // namespace hipkittens::simulator::debug
