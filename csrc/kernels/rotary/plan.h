// kernels/rotary/plan.h: plans the launch of a rotation from its arguments. Pure functions: no device, no library, no state.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "../launch.h"
#include "arguments.h"
#include "kinds.h"

namespace hipkittens::rotary {

// Sets `wide`, which the arguments leave open. Throws std::invalid_argument.
Launch plan(int target, ElementType element, const RotaryArguments& arguments);
// Sets `passes`, `wide` and the shifts of these.
Launch plan_qkv(int target, ElementType element, QkvArguments arguments);
Launch plan_qkv_backward(int target, ElementType element, QkvBackwardArguments arguments);
// Sets `wide`, `ends` and the divisors of these.
Launch plan_joined(int target, ElementType element, int64_t tokens, JoinedArguments arguments);
// Per part, for the tokens and the largest number of heads: four rows of partial sums each.
uint32_t qkv_backward_workgroups(int64_t tokens, int64_t heads);

}  // namespace hipkittens::rotary
