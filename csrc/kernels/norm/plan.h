// kernels/norm/plan.h: from a norm's arguments to launches. Pure: no device, no library, nothing remembered.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "../launch.h"
#include "arguments.h"
#include "kinds.h"

namespace hipkittens::norm {

// Throws std::invalid_argument for rows that no kernel takes.
void check(int64_t rows, int64_t cols);

// The workers, which the arguments leave open, are chosen here.
Launch plan_forward(int target, ElementType element, const ForwardArguments& arguments);

// Of both of a pair, too; what codes there are is laid out by quantize::laid_out.
Launch plan_fused(int target, ElementType element, FusedPair arguments);

// How many partial sums of the gradients of weight and bias there are, one of each workgroup. Depends on the problem alone, so that the
// order of additions is the same on every device.
uint32_t backward_workers(int64_t rows, int64_t cols);

// In order, on one stream. The partial sums are workspace: backward_workers rows for each. result: the gradients of
// weight and bias in parameter_type, where there are partial sums.
std::vector<Launch> plan_backward(int target, ElementType element, const BackwardArguments& arguments,
                                  void* weight_result, void* bias_result);

}  // namespace hipkittens::norm
