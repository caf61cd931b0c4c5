// torch/gemm_launch.h: a planned product and its launches.
// SPDX-License-Identifier: MIT
#pragma once
#include <span>

#include "kernels/gemm/plan.h"
#include "torch/placement.h"

namespace hipkittens::torch_binding {

// Plans the product and launches it, with a workspace where K is split.
void launch_product(const Placement& placement, const gemm::Problem& problem,
                    std::span<const runtime::Region> tensors);

}  // namespace hipkittens::torch_binding
