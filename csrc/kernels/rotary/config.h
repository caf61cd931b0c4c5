// kernels/rotary/config.h: the compile-time configuration of a rotary kernel.
// SPDX-License-Identifier: MIT
#pragma once
#include "arguments.h"

namespace hipkittens::rotary {

inline constexpr int waves = 4;             // per workgroup, each with its own token
inline constexpr int joined_threads = 256;  // per workgroup, each with its own unit
inline constexpr int pairs_per_lane = 8;    // 16 features, two 16-byte accesses
// For each of q, k and v: enough for every compute unit, and few enough that the sums over them are short.
inline constexpr int largest_backward_workgroups = 304;

struct PlainConfig {
    ElementType element, table;
};

}  // namespace hipkittens::rotary
