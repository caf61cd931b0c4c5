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
// Of these `passes`, `wide` and shifts are decided here.
Launch plan_qkv(int target, ElementType element, QkvArguments arguments);
Launch plan_qkv_backward(int target, ElementType element, QkvBackwardArguments arguments);
// Of these `wide`, `ends` and divisors are decided here.
Launch plan_joined(int target, ElementType element, int64_t tokens, JoinedArguments arguments);
// Of each part, for tokens and the largest number of heads: four rows of partial sums each.
uint32_t qkv_backward_workgroups(int64_t tokens, int64_t heads);

}  // namespace hipkittens::rotary
