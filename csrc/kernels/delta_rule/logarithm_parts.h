// kernels/delta_rule/logarithm_parts.h: logarithms of decays in two parts, so that their sum over a chunk rounds once.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"

namespace hipkittens::delta_rule {

// A multiple of 2^-12, which a float represents exactly up to 4096, and a rest so small that a chunk of them rounds below 2^-30. A sum
// of the logarithms themselves rounds relative to its current value, and each rounding is a relative error of everything that decays.
struct LogarithmParts {
    float coarse, fine;

    KITTENS_DEVICE explicit LogarithmParts(float x) {
        // Floats between 2048 and 4096 are 2^-12 apart.
        constexpr float middle = 3072.0f;
        // e^-200 is 0 in float. NaN passes through.
        x = x < -200.0f ? -200.0f : x;
        coarse = (x + middle) - middle;
        fine = x - coarse;
    }
    KITTENS_DEVICE LogarithmParts(float coarse, float fine) : coarse(coarse), fine(fine) {}
    KITTENS_DEVICE float sum() const { return coarse + fine; }
};

}  // namespace hipkittens::delta_rule
