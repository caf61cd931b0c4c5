// kernels/rotary/config.h: what is fixed when a rotary kernel is compiled.
// SPDX-License-Identifier: MIT
#pragma once
#include "arguments.h"

namespace hipkittens::rotary {

inline constexpr int waves = 4;           // of a workgroup, each with its own token
inline constexpr int pairs_per_lane = 8;  // 16 features, two accesses of 16 bytes

struct PlainConfig {
    ElementType element, table;
};

}  // namespace hipkittens::rotary
