// kernels/norm/plan.h: plans the launches of a norm from its arguments. Pure functions: no device, no library, no state.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "../launch.h"
#include "arguments.h"
#include "kinds.h"

namespace hipkittens::norm {

// Throws std::invalid_argument for rows that no kernel supports.
void check(int64_t rows, int64_t cols);

// Sets the number of workers, which the arguments leave open.
Launch plan_forward(int target, ElementType element, const ForwardArguments& arguments);

// For both norms of a pair, if there are two; the layout of quantized results is set by quantize::laid_out.
Launch plan_fused(int target, ElementType element, FusedPair arguments);

// The number of partial sums of the gradients of weight and bias, one per workgroup. Depends on the problem alone, so that the order of
// additions is the same on every device.
uint32_t backward_workers(int64_t rows, int64_t cols);

// In order, on one stream. The partial sums are workspace: backward_workers rows for each. result: the gradients of
// weight and bias in parameter_type, if there are partial sums.
std::vector<Launch> plan_backward(int target, ElementType element, const BackwardArguments& arguments,
                                  void* weight_result, void* bias_result);

}  // namespace hipkittens::norm
