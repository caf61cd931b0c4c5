// simulator/timing/stalls.h: the reasons why a wave does not issue.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace hipkittens::simulator::timing {

// clang-format off
enum class Stall : uint8_t {
    none, matrix_result, vmcnt, lgkmcnt, counter_full, barrier, instruction_fetch, branch,
    vector_busy, matrix_busy, vector_memory_busy, lds_busy, issue_slot,
};
inline constexpr const char* stall_names[] = {
    "none", "matrix_result", "vmcnt", "lgkmcnt", "counter_full", "barrier", "instruction_fetch", "branch",
    "vector_busy", "matrix_busy", "vector_memory_busy", "lds_busy", "issue_slot",
};
// clang-format on
inline constexpr int stall_count = sizeof stall_names / sizeof stall_names[0];

}  // namespace hipkittens::simulator::timing
