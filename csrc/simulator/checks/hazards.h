// simulator/checks/hazards.h: missing wait states between two instructions, found when a program is translated.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/checks/check_plan.h"

namespace hipkittens::simulator::checks {

// Some path from `producer` to `consumer` has `have` wait states, and the hardware needs `need`.
struct Hazard {
    const char* kind = "";
    const char* what = "";
    uint32_t producer = 0, consumer = 0;
    uint32_t need = 0, have = 0;
    uint32_t register_number = register_count;  // register_count: no particular register
};

// Searches backward from every instruction along all paths through direct branches, like LLVM's hazard
// recognizer.
std::vector<Hazard> find_hazards(const Program& program, const Plan& plan);

}  // namespace hipkittens::simulator::checks
