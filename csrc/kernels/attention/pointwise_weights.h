// kernels/attention/pointwise_weights.h: weights of keys that depend only on their own scores.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "config.h"
#include "pointwise_arguments.h"

namespace hipkittens::attention {

using namespace kittens;

constexpr bool is_pointwise(ScoreTerms terms) { return terms == ScoreTerms::silu; }
template <ScoreTerms terms>
using ForwardArgumentsOf = choose<is_pointwise(terms), PointwiseForwardArguments, ForwardArguments>;
template <ScoreTerms terms>
using BackwardArgumentsOf = choose<is_pointwise(terms), PointwiseBackwardArguments, BackwardArguments>;

// silu(x) = x / (1 + e^-x) with x = scale times a product; whole sums are divided by the length.
struct SiluWeights {
    float scale, negative_scale_log2, length;

    KITTENS_DEVICE static SiluWeights of(const PointwiseArguments& arguments) {
        return {arguments.scale, arguments.scale * -1.4426950408889634f, arguments.length};
    }

    // 0 where e^-x overflows.
    KITTENS_DEVICE float sigmoid(float product) const {
        return hardware_reciprocal(1.0f + exponential_base_2(product * negative_scale_log2));
    }
    KITTENS_DEVICE float weight(float product) const { return product * scale * sigmoid(product); }
    // The derivative of silu at x.
    KITTENS_DEVICE float derivative(float product) const {
        const float s = sigmoid(product);
        return s * __builtin_fmaf(product * scale, 1.0f - s, 1.0f);
    }
    // The divisor of the sum over a row's keys.
    KITTENS_DEVICE float total() const { return length; }
    // Replaces products by weights.
    template <class Scores>
    KITTENS_DEVICE void weigh(Scores& scores) const {
        for_each_register<Scores>(
            [&](int i, int j, int e) { scores.tiles[i][j][e] = weight(scores.tiles[i][j][e]); });
    }
};

}  // namespace hipkittens::attention
