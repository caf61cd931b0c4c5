// kernels/row_softmax.h: the maximum of a row and the sum of its exponentials, in one pass.
// SPDX-License-Identifier: MIT
#pragma once
#include "../tiles/row_chunk.h"
#include "../tiles/transcendental.h"

namespace hipkittens {

using kittens::eight;

// A lane's running state for its row: the largest value and, relative to it, the sum of e^x and of x e^x.
template <bool accurate, bool with_products>
struct OnlineSoftmax {
    float maximum = -__builtin_inff(), sum = 0, products = 0;

    // Nothing is subtracted while every value is -infinity.
    KITTENS_DEVICE static float offset(float maximum) {
        return maximum == -__builtin_inff() ? 0.0f : maximum;
    }
    KITTENS_DEVICE void rise_to(float higher) {
        const float step = maximum - offset(higher), factor = kittens::exponential<accurate>(step);
        // If the factor is 0, the step may be infinite.
        if (with_products) products = factor == 0 ? 0.0f : factor * __builtin_fmaf(step, sum, products);
        sum *= factor;
        maximum = higher;
    }
    KITTENS_DEVICE void add(eight values) {
        float higher = maximum;
#pragma unroll
        for (int i = 0; i < 8; ++i) higher = kittens::larger(higher, values[i]);
        rise_to(higher);
        const float largest = offset(maximum);
        eight powers;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float below = values[i] - largest;
            powers[i] = kittens::exponential<accurate>(below);
            if (with_products) products += powers[i] == 0 ? 0.0f : below * powers[i];
        }
        sum += ((powers[0] + powers[1]) + (powers[2] + powers[3])) +
               ((powers[4] + powers[5]) + (powers[6] + powers[7]));
    }
};

}  // namespace hipkittens
