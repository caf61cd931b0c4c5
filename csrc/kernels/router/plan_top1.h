// kernels/router/plan_top1.h: from a router of one expert with its product to its launch.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::router {

inline constexpr int64_t most_top1_experts = [] {
    int64_t most = 0;
    for (const Row<kinds::top1>& row : variants<kinds::top1>)
        most = std::max<int64_t>(most, row.config.experts());
    return most;
}();
// HIP counts the threads of a grid dimension in 32 bits.
inline constexpr int64_t most_top1_tokens = [] {
    int64_t most = UINT32_MAX;
    for (const Row<kinds::top1>& row : variants<kinds::top1>)
        most = std::min<int64_t>(most, int64_t{UINT32_MAX} / row.config.threads() * row.config.tokens());
    return most;
}();

// Throws std::invalid_argument. w is addressed with 32 bits.
inline void check_top1(int64_t tokens, int64_t experts, int64_t shared, uint64_t w_bytes) {
    const auto refuse = [](const std::string& what) { throw std::invalid_argument("router_top1: " + what); };
    if (experts < 1 || experts > most_top1_experts)
        refuse(std::to_string(experts) + " experts; 1 .. " + std::to_string(most_top1_experts) +
               " are allowed");
    if (shared < 0 || shared > INT32_MAX / 2)
        refuse(std::to_string(shared) + " shared experts; 0 .. " + std::to_string(INT32_MAX / 2) +
               " are allowed");
    if (tokens > most_top1_tokens)
        refuse(std::to_string(tokens) + " tokens; up to " + std::to_string(most_top1_tokens) +
               " are allowed");
    if (w_bytes > UINT32_MAX)
        refuse("w has " + std::to_string(w_bytes) + " bytes; fewer than 2^32 are allowed");
}

// Throws std::invalid_argument.
inline Launch plan_top1(int target, ElementType element, Top1Arguments arguments) {
    // Of w that has unit stride along K; any other strides are read by the kernels of neighbouring experts.
    const bool experts_together = arguments.w_features_step != 1 && arguments.features > 1;
    if (experts_together && arguments.w_expert_step != 1 && arguments.experts > 1) arguments.wide = 0;
    const uint32_t step = experts_together ? arguments.w_features_step : arguments.w_expert_step;
    if (step % 2 || reinterpret_cast<uintptr_t>(arguments.w) % 4) arguments.wide = 0;
    for (const Row<kinds::top1>& row : variants<kinds::top1>)
        if (includes(row.targets, target) && row.config.element == element &&
            row.config.experts_together == experts_together &&
            arguments.experts <= static_cast<uint32_t>(row.config.experts())) {
            const uint32_t tokens = row.config.tokens();
            return launch_of("router", row.name, target, {(arguments.rows.all + tokens - 1) / tokens, 1, 1},
                             row.config.threads(), arguments);
        }
    throw std::invalid_argument("router_top1: no kernel has room for so many experts");
}

}  // namespace hipkittens::router
