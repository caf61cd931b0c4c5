// kernels/rotary/plan.h: from a rotation's arguments to its launch. Pure: no device, no library, nothing remembered.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "../launch.h"
#include "arguments.h"
#include "kinds.h"

namespace hipkittens::rotary {

// `wide`, which the arguments leave open, is decided here. Throws std::invalid_argument.
Launch plan(int target, ElementType element, const RotaryArguments& arguments);

}  // namespace hipkittens::rotary
