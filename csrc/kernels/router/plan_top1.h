// kernels/router/plan_top1.h: plans the launch of a top-1 router fused with its matrix product.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>

#include "../device_shape.h"
#include "../launch.h"
#include "kinds.h"

namespace hipkittens::router {

// Throws std::invalid_argument. HIP counts the threads of a grid dimension in 32 bits, and w is addressed with 32 bits.
inline void check_top1(int64_t tokens, int64_t experts, int64_t shared, uint64_t w_bytes) {
    const auto refuse = [](const std::string& what) { throw std::invalid_argument("router_top1: " + what); };
    constexpr int64_t most_tokens = UINT32_MAX / top1_threads * 16;
    if (experts < 1 || experts > most_top1_experts)
        refuse(std::to_string(experts) + " experts; 1 .. " + std::to_string(most_top1_experts) +
               " are allowed");
    if (shared < 0 || shared > INT32_MAX / 2)
        refuse(std::to_string(shared) + " shared experts; 0 .. " + std::to_string(INT32_MAX / 2) +
               " are allowed");
    if (tokens > most_tokens)
        refuse(std::to_string(tokens) + " tokens; up to " + std::to_string(most_tokens) + " are allowed");
    if (w_bytes > UINT32_MAX)
        refuse("w has " + std::to_string(w_bytes) + " bytes; fewer than 2^32 are allowed");
}

// Every workgroup reads all of w, so each compute unit gets one workgroup with its share of the tokens, and more only if a workgroup
// has no room for them. A token's result does not depend on how many others its workgroup has. Throws std::invalid_argument.
inline Launch plan_top1(const DeviceShape& device, ElementType element, Top1Arguments arguments) {
    // If neither stride of w is 1, it is read by the kernels for contiguous experts.
    const bool experts_together = arguments.w_features_step != 1 && arguments.features > 1;
    if (experts_together && arguments.w_expert_step != 1 && arguments.experts > 1) arguments.wide = 0;
    const uint32_t step = experts_together ? arguments.w_features_step : arguments.w_expert_step;
    if (step % 2 || reinterpret_cast<uintptr_t>(arguments.w) % 4) arguments.wide = 0;
    const uint32_t units = static_cast<uint32_t>(std::max(device.compute_units, 1));
    const uint32_t share = (arguments.rows.all + units - 1) / units;
    const Row<kinds::top1>* chosen = nullptr;
    for (const Row<kinds::top1>& row : variants<kinds::top1>)
        if (includes(row.targets, device.target) && row.config.element == element &&
            row.config.experts_together == experts_together &&
            (!chosen || share > static_cast<uint32_t>(16 * chosen->config.token_tiles)))
            chosen = &row;
    if (!chosen) throw std::invalid_argument("router_top1: no kernel for this type");
    arguments.tokens = std::min<uint32_t>(share, 16 * chosen->config.token_tiles);
    return launch_of("router", chosen->name, device.target,
                     {(arguments.rows.all + arguments.tokens - 1) / arguments.tokens, 1, 1}, top1_threads,
                     arguments);
}

}  // namespace hipkittens::router
