// torch/gemm_launch.cpp: turns a planned product into launches.
// SPDX-License-Identifier: MIT
#include "torch/gemm_launch.h"

#include <optional>
#include <vector>

namespace hipkittens::torch_binding {

void launch_product(const Placement& placement, const gemm::Problem& problem,
                    std::span<const runtime::Region> tensors) {
    gemm::Plan plan = gemm::plan(problem);
    std::vector<runtime::Region> regions(tensors.begin(), tensors.end());
    std::optional<Tensor> workspace;
    if (plan.workspace_bytes > 0) {
        const int64_t elements = static_cast<int64_t>((plan.workspace_bytes + 3) / 4);
        workspace = placement.empty({&elements, 1}, Dtype::float32);
        gemm::bind_workspace(plan, workspace->data());
        regions.push_back({workspace->data(), plan.workspace_bytes, "workspace", true});
    }
    for (const Launch& launch : plan.launches) placement.launch(launch, regions);
}

}  // namespace hipkittens::torch_binding
