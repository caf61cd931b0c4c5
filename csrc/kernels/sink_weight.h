// kernels/sink_weight.h: an attention sink: one additional key per head, which has a score and no value.
// SPDX-License-Identifier: MIT
#pragma once
#include "../tiles/tiles.h"

namespace hipkittens {

// The contribution of a sink with score z to a sum of exponentials relative to `reference`, base 2.
KITTENS_DEVICE float sink_weight(float z, float reference) {
    constexpr float log2_e = 1.4426950408889634f;
    return z == -__builtin_inff() ? 0.0f : kittens::exponential_base_2(__builtin_fmaf(z, log2_e, -reference));
}

}  // namespace hipkittens
