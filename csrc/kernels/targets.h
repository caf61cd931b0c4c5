// kernels/targets.h: the targets that a row of variants.def is built for.
// SPDX-License-Identifier: MIT
#pragma once

namespace hipkittens {

enum class Targets { both, gfx942, gfx950 };

// target: 942 or 950.
constexpr bool includes(Targets targets, int target) {
    return targets != (target == 942 ? Targets::gfx950 : Targets::gfx942);
}

}  // namespace hipkittens
