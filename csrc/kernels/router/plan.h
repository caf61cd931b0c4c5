// kernels/router/plan.h: plans the launch of a router from its arguments.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>

#include "../launch.h"
#include "kinds.h"

namespace hipkittens::router {

inline constexpr int64_t most_experts = [] {
    int64_t most = 0;
    for (const Row<kinds::route>& row : variants<kinds::route>)
        most = std::max<int64_t>(most, row.config.experts());
    return most;
}();

// Throws std::invalid_argument. HIP counts the threads of a grid dimension in 32 bits.
inline void check(int64_t tokens, int64_t experts, int64_t k, int64_t groups, int64_t chosen_groups,
                  int64_t shared) {
    const auto refuse = [](const std::string& what) { throw std::invalid_argument("router: " + what); };
    constexpr int64_t most_tokens = UINT32_MAX / 64 - waves;
    if (experts < 1 || experts > most_experts)
        refuse(std::to_string(experts) + " experts; 1 .. " + std::to_string(most_experts) + " are allowed");
    if (groups < 1 || groups > most_groups || experts % groups)
        refuse(std::to_string(groups) + " groups; 1 .. 64 that divide the experts are allowed");
    if (chosen_groups < 1 || chosen_groups > groups)
        refuse(std::to_string(chosen_groups) + " groups to choose from; 1 .. " + std::to_string(groups) +
               " are allowed");
    if (k < 1 || k > experts / groups * chosen_groups)
        refuse("k is " + std::to_string(k) + "; 1 .. " + std::to_string(experts / groups * chosen_groups) +
               " are allowed, the experts of the chosen groups");
    if (shared < 0 || shared > INT32_MAX / 2 || tokens > most_tokens)
        refuse(std::to_string(tokens) + " tokens with " + std::to_string(shared) + " shared experts; up to " +
               std::to_string(most_tokens) + " tokens are allowed");
}

// Sets the values that depend on the others. Throws std::invalid_argument.
inline Launch plan(int target, RouteArguments arguments) {
    arguments.group_size = arguments.experts / arguments.groups;
    arguments.group_factor = ((1u << group_shift) + arguments.group_size - 1) / arguments.group_size;
    for (const Row<kinds::route>& row : variants<kinds::route>)
        if (includes(row.targets, target) &&
            arguments.experts <= static_cast<uint32_t>(row.config.experts())) {
            const uint32_t tokens = waves * static_cast<uint32_t>(row.config.tokens_per_wave());
            return launch_of("router", row.name, target, {(arguments.rows.all + tokens - 1) / tokens, 1, 1},
                             threads, arguments);
        }
    throw std::invalid_argument("router: no kernel has room for so many experts");
}

}  // namespace hipkittens::router
