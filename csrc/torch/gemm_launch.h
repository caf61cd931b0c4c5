// torch/gemm_launch.h: what the operators of matrix products share.
// SPDX-License-Identifier: MIT
#pragma once
#include <span>
#include <string>

#include "kernels/gemm/plan.h"
#include "torch/placement.h"

namespace hipkittens::torch_binding {

std::string shape_text(std::span<const int64_t> sizes);

// Plans the product and launches it, with a workspace where K is split.
void launch_product(const Placement& placement, const gemm::Problem& problem,
                    std::span<const runtime::Region> tensors);

}  // namespace hipkittens::torch_binding
