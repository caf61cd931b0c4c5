// tiles/transcendental.h: exponential, logarithm and hyperbolic tangent of floats, from single instructions.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"

namespace kittens {

// e^x for x <= 0. accurate: to a float's last bits, of which a 16-bit result shows none. NaN stays, -infinity gives 0.
template <bool accurate>
KITTENS_DEVICE float exponential(float x) {
    constexpr float log2_e = 0x1.715476p+0f, log2_e_rest = 0x1.4ae0cp-26f, ln_2 = 0x1.62e43p-1f;
    if constexpr (!accurate) return exponential_base_2(x * log2_e);
    // e^-200 is 0 as a float, and the products of an infinite x would be NaN.
    x = x < -200.0f ? -200.0f : x;
    const float exponent = x * log2_e;
    const float lost = __builtin_fmaf(x, log2_e, -exponent) + x * log2_e_rest;
    const float power = exponential_base_2(exponent);
    return __builtin_fmaf(power, lost * ln_2, power);
}

KITTENS_DEVICE float natural_logarithm(float x) {
    constexpr float ln_2 = 0x1.62e43p-1f;
    return logarithm_base_2(x) * ln_2;
}

// Near zero the quotient would lose its leading bits; a polynomial stands for it there (coefficients of Cephes' tanhf, S. Moshier).
KITTENS_DEVICE float hyperbolic_tangent(float x) {
    const float magnitude = absolute_value(x), square = x * x;
    float series = __builtin_fmaf(square, -5.70498872745e-3f, 2.06390887954e-2f);
    series = __builtin_fmaf(square, series, -5.37397155531e-2f);
    series = __builtin_fmaf(square, series, 1.33314422036e-1f);
    series = __builtin_fmaf(square, series, -3.33332819422e-1f);
    series = __builtin_fmaf(x * square, series, x);
    const float power = exponential<true>(-2 * magnitude);
    const float numerator = 1 - power, denominator = 1 + power, inverse = hardware_reciprocal(denominator);
    const float rough = numerator * inverse;
    const float quotient = __builtin_fmaf(__builtin_fmaf(-denominator, rough, numerator), inverse, rough);
    return magnitude < 0.625f ? series : __builtin_copysignf(quotient, x);
}

}  // namespace kittens
