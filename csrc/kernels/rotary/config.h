// kernels/rotary/config.h: what is fixed when a rotary kernel is compiled.
// SPDX-License-Identifier: MIT
#pragma once
#include "arguments.h"

namespace hipkittens::rotary {

inline constexpr int waves = 4;           // of a workgroup, each with its own token
inline constexpr int pairs_per_lane = 8;  // 16 features, two accesses of 16 bytes

struct RotaryVariant {
    const char* name;
    bool plain;
    ElementType element, table;
};

inline constexpr RotaryVariant rotary_variants[] = {
#define ROTARY(name, targets, element) {#name, false, ElementType::element, ElementType::f32},
#define ROTARY_PLAIN(name, targets, element, table) {#name, true, ElementType::element, ElementType::table},
#include "variants.def"
#undef ROTARY
#undef ROTARY_PLAIN
};

}  // namespace hipkittens::rotary
