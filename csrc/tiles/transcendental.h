// tiles/transcendental.h: exponentials, logarithms and functions built from them, for floats, from single instructions.
// SPDX-License-Identifier: MIT
#pragma once
#include "intrinsics.h"

namespace kittens {

// e^x for x <= 0. accurate: to the last bits of a float, which a 16-bit result does not show. NaN passes through, -infinity gives 0.
template <bool accurate>
KITTENS_DEVICE float exponential(float x) {
    constexpr float log2_e = 0x1.715476p+0f, log2_e_rest = 0x1.4ae0cp-26f, ln_2 = 0x1.62e43p-1f;
    if constexpr (!accurate) return exponential_base_2(x * log2_e);
    // e^-200 is 0 in float; without the bound, the products with an infinite x would be NaN.
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

// tanh and its derivative, 1 - tanh^2 computed without that cancellation. Near zero the quotient would lose its leading bits, so
// a polynomial replaces it there (coefficients of Cephes' tanhf, S. Moshier).
struct Tangent {
    float value, slope;
};
KITTENS_DEVICE Tangent hyperbolic_tangent(float x) {
    const float magnitude = absolute_value(x), square = x * x;
    float series = __builtin_fmaf(square, -5.70498872745e-3f, 2.06390887954e-2f);
    series = __builtin_fmaf(square, series, -5.37397155531e-2f);
    series = __builtin_fmaf(square, series, 1.33314422036e-1f);
    series = __builtin_fmaf(square, series, -3.33332819422e-1f);
    series = __builtin_fmaf(x * square, series, x);
    const float power = exponential<true>(-2 * magnitude);
    const float numerator = 1 - power, denominator = 1 + power, estimate = hardware_reciprocal(denominator);
    const float inverse = __builtin_fmaf(__builtin_fmaf(-denominator, estimate, 1.0f), estimate, estimate);
    const float rough = numerator * inverse;
    const float quotient = __builtin_fmaf(__builtin_fmaf(-denominator, rough, numerator), inverse, rough);
    if (magnitude < 0.625f) return {series, __builtin_fmaf(-series, series, 1.0f)};
    return {__builtin_copysignf(quotient, x), 4 * power * inverse * inverse};
}

// 1 / (1 + e^-z) and its complement to 1, each accurate to its last bits. The exponent of e is never positive, so nothing overflows.
struct Sigmoid {
    float value, rest;
};
template <bool accurate>
KITTENS_DEVICE Sigmoid sigmoid(float z) {
    const float power = exponential<accurate>(-absolute_value(z)), sum = 1.0f + power;
    float larger = hardware_reciprocal(sum);
    if constexpr (accurate) larger = __builtin_fmaf(__builtin_fmaf(-sum, larger, 1.0f), larger, larger);
    const float smaller = power * larger;
    return z < 0 ? Sigmoid{smaller, larger} : Sigmoid{larger, smaller};
}

// The standard normal distribution: the probability below x, and the density at x. To avoid the cancellation in 1 + erf, the
// tail is e^(-x^2 / 2) times a polynomial (coefficients of Cephes' erff and erfcf, S. Moshier).
struct Normal {
    float below, density;
};
template <int count>
KITTENS_DEVICE float polynomial(const float (&coefficients)[count], float x) {
    float result = coefficients[0];
#pragma unroll
    for (int i = 1; i < count; ++i) result = __builtin_fmaf(result, x, coefficients[i]);
    return result;
}
template <bool accurate>
KITTENS_DEVICE Normal standard_normal(float x) {
    constexpr float near_zero[] = {7.853861353153693e-5f,  -8.010193625184903e-4f, 5.188327685732524e-3f,
                                   -2.685381193529856e-2f, 1.128358514861418e-1f,  -3.761262582423300e-1f,
                                   1.128379165726710f};
    constexpr float middle[] = {2.326819970068386e-2f,  -1.387039388740657e-1f, 3.687424674597105e-1f,
                                -5.824733027278666e-1f, 6.210004621745983e-1f,  -4.944515323274145e-1f,
                                3.404879937665872e-1f,  -2.741127028184656e-1f, 5.638259427386472e-1f};
    constexpr float far[] = {-1.047766399936249e+1f, 1.297719955372516e+1f, -7.495518717768503f,
                             2.921019019210786f,     -1.015265279202700f,   4.218463358204948e-1f,
                             -2.820767439740514e-1f, 5.641895067754075e-1f};
    constexpr float root_half = 0x1.6a09e6p-1f, density_at_zero = 0x1.988454p-2f;
    const float z = absolute_value(x) * root_half, power = exponential<accurate>(-0.5f * x * x);
    const float inverse = hardware_reciprocal(z), square = inverse * inverse;
    const float tail =
        0.5f * power * inverse * (z < 2 ? polynomial(middle, square) : polynomial(far, square));
    const float center = 0.5f * z * polynomial(near_zero, z * z);
    // The probability on the side opposite to x.
    const float beyond = z < 1 ? 0.5f - center : tail;
    return {x < 0 ? beyond : z < 1 ? 0.5f + center : 1.0f - tail, power * density_at_zero};
}

}  // namespace kittens
