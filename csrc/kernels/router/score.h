// kernels/router/score.h: the scores of logits, accurate to the last bits of a float.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/intrinsics.h"
#include "kinds.h"

namespace hipkittens::router {

// e^x for x <= 0 or NaN, with the exponent of 2 in two parts.
KITTENS_DEVICE float exponential(float x) {
    constexpr float log2_e = 0x1.715476p+0f, log2_e_rest = 0x1.4ae0cp-26f, ln_2 = 0x1.62e43p-1f;
    const float limited =
        x < -200.0f ? -200.0f : x;  // 0 in float; the products with an infinite x would be NaN
    const float exponent = limited * log2_e;
    const float lost = __builtin_fmaf(limited, log2_e, -exponent) + limited * log2_e_rest;
    const float power = kittens::exponential_base_2(exponent);
    return __builtin_fmaf(power, lost * ln_2, power);
}

// log(1 + x) for 0 <= x <= 1: the slope corrects for the rounding of 1 + x.
KITTENS_DEVICE float logarithm_of_1_plus(float x) {
    constexpr float ln_2 = 0x1.62e43p-1f;
    const float sum = 1.0f + x;
    const float rounded = sum - 1.0f;
    return rounded == 0.0f ? x : kittens::logarithm_base_2(sum) * ln_2 * (x / rounded);
}

// For softmax, the score without the division by the sum, e^(x - most); the other scores do not use `most`.
KITTENS_DEVICE float score_of(Score score, float x, float most) {
    const float power = exponential(score == Score::softmax ? x - most : -__builtin_fabsf(x));
    if (score == Score::softmax) return power;
    if (score == Score::sigmoid) return (x < 0 ? power : 1.0f) / (1.0f + power);
    return kittens::hardware_square_root((x > 0 ? x : 0.0f) + logarithm_of_1_plus(power));
}

}  // namespace hipkittens::router
