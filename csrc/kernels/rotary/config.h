// kernels/rotary/config.h: what is fixed when a rotary kernel is compiled.
// SPDX-License-Identifier: MIT
#pragma once
#include "arguments.h"

namespace hipkittens::rotary {

inline constexpr int waves = 4;             // of a workgroup, each with its own token
inline constexpr int joined_threads = 256;  // of a workgroup, each with its own unit
inline constexpr int pairs_per_lane = 8;    // 16 features, two accesses of 16 bytes
// Of each of q, k and v: enough for every compute unit, and few enough for the sums over them to be short.
inline constexpr int largest_backward_workgroups = 304;

struct PlainConfig {
    ElementType element, table;
};

}  // namespace hipkittens::rotary
