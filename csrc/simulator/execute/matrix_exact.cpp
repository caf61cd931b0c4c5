// simulator/execute/matrix_exact.cpp: one group of the CDNA3 rule for one element, as the rule is stated.
// SPDX-License-Identifier: MIT
#include "simulator/execute/matrix_exact.h"

namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL {

namespace {

// value = significand * 2^exponent, |significand| < 2; the exponent of 0 is the smallest.
struct Split {
    double significand;
    int exponent;
};

Split split(float value, int smallest_exponent) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
    if (exponent < smallest_exponent) exponent = smallest_exponent;
    return {__builtin_ldexp(static_cast<double>(value), -exponent), exponent};
}

constexpr float quiet_nan = __builtin_nanf("");

}  // namespace

float exact_group(const float* a, int a_step, const float* b, int b_step, int count, int smallest_exponent,
                  float c) {
    double significands[8];
    int exponents[8], largest = -1000;
    // If there are infinities, NaN, or products too large for f32, they alone determine the result.
    double special = __builtin_isfinite(c) ? 0.0 : c;
    for (int k = 0; k < count; ++k) {
        const float x = a[k * a_step], y = b[k * b_step];
        double product = static_cast<double>(x) * y;  // exact unless special
        if (product >= 0x1p128) product = __builtin_inf();
        if (product <= -0x1p128) product = -__builtin_inf();
        if (!__builtin_isfinite(product)) {
            special += product;
            continue;
        }
        const Split left = split(x, smallest_exponent), right = split(y, smallest_exponent);
        significands[k] = left.significand * right.significand;
        exponents[k] = product == 0 ? -126 : left.exponent + right.exponent;
        if (exponents[k] > largest) largest = exponents[k];
    }
    if (special != special) return quiet_nan;
    if (special != 0) return static_cast<float>(special);
    double sum = 0;
    for (int k = 0; k < count; ++k)
        sum += __builtin_trunc(__builtin_ldexp(significands[k], exponents[k] - largest + 24));
    const Split addend = split(c, -126);
    const int top = largest > addend.exponent ? largest : addend.exponent;
    const double total =
        __builtin_floor(__builtin_ldexp(sum, largest - top + 7)) +
        __builtin_floor(__builtin_ldexp(addend.significand, addend.exponent - top + 24)) * 128;
    return static_cast<float>(__builtin_ldexp(total, top - 31)) + 0.0f;
}

float special_sum(const float* a, int a_step, const float* b, int b_step, int count, float c) {
    float sum = 0;
    for (int k = 0; k < count; ++k) {
        const float product = a[k * a_step] * b[k * b_step];
        if (!__builtin_isfinite(product)) sum += product;
    }
    return sum != sum ? quiet_nan : sum != 0 ? c + sum : c;
}

}  // namespace hipkittens::simulator::HIPKITTENS_HOST_LEVEL
