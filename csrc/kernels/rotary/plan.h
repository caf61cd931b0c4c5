// kernels/rotary/plan.h: from a rotation's arguments to its launch. Pure: no device, no library, nothing remembered.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "arguments.h"
#include "config.h"

namespace hipkittens::rotary {

struct Launch {
    std::string kernel;   // symbol
    std::string variant;  // row of variants.def
    uint32_t grid[3];     // workgroups
    uint32_t block[3];    // threads
    std::vector<unsigned char> arguments;
};

// `wide`, which the arguments leave open, is decided here. Throws std::invalid_argument.
Launch plan(int target, ElementType element, const RotaryArguments& arguments);

}  // namespace hipkittens::rotary
