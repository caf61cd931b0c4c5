// tiles/float8.h: conversions to the 8-bit floats of the target.
// SPDX-License-Identifier: MIT
#pragma once
#include "lane_intrinsics.h"

namespace kittens {

// The largest finite value of to_fp8's format: e4m3fnuz on gfx942, e4m3fn on gfx950.
inline constexpr float largest_fp8 = target.number == 942 ? 240.0f : 448.0f;

// NaN passes through and converts to the NaN of the format.
KITTENS_DEVICE float clamped(float value, float largest) {
    return value > largest ? largest : value < -largest ? -largest : value;
}

// Packs four values, the first in the lowest byte: e4m3fnuz and e5m2fnuz on gfx942, e4m3fn and e5m2 on gfx950, ties to even. Values
// past the largest finite one become NaN or infinity.
KITTENS_DEVICE uint32_t to_fp8(vec<float, 4> values) {
    return pack_fp8<true>(values[2], values[3], pack_fp8<false>(values[0], values[1], 0));
}
KITTENS_DEVICE uint32_t to_bf8(vec<float, 4> values) {
    return pack_bf8<true>(values[2], values[3], pack_bf8<false>(values[0], values[1], 0));
}

}  // namespace kittens
