// torch/gemm_launch.h: plans a product and launches it.
// SPDX-License-Identifier: MIT
#pragma once
#include <span>

#include "kernels/gemm/plan.h"
#include "torch/placement.h"

namespace hipkittens::torch_binding {

// Plans the product and launches it, with a workspace when K is split.
void launch_product(const Placement& placement, const gemm::Problem& problem,
                    std::span<const runtime::Region> tensors);

}  // namespace hipkittens::torch_binding
