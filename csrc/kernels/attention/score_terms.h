// kernels/attention/score_terms.h: scores with a softcap or an ALiBi bias, and their effect on the gradient.
// SPDX-License-Identifier: MIT
#pragma once
#include "../../tiles/tiles.h"
#include "config.h"
#include "mask.h"

namespace hipkittens::attention {

using namespace kittens;

// With x = scale q k and d the distance between the position of the query and the key, |i + n_k - n_q - j|:
//     alibi: s = x - slope d (Press et al. 2022); softcap: s = cap tanh(x / cap) - slope d (Gemma 2, 2024).
// Everything is base 2. Instead of tanh, the code uses r = 1 / (1 + e^(2 x / cap)): tanh = 1 - 2 r, and its derivative
// is 4 r (1 - r).
template <ScoreTerms terms>
struct ScoreShape {
    static constexpr bool capped = terms == ScoreTerms::softcap;
    float scale_log2;  // for products without a cap
    float cap_log2, inner_log2;

    KITTENS_DEVICE ScoreShape(float scale_log2, const ScoreTermArguments& arguments)
        : scale_log2(scale_log2), cap_log2(arguments.cap_log2), inner_log2(arguments.inner_log2) {}

    // The score of a product q k at a distance with either sign. `derivative`: with a cap, that of the score with respect to x.
    KITTENS_DEVICE float score(float product, float slope_log2, float distance, float& derivative) const {
        float unbiased = product * scale_log2;
        if constexpr (capped) {
            const float r = hardware_reciprocal(1.0f + exponential_base_2(product * inner_log2));
            unbiased = __builtin_fmaf(-2.0f * cap_log2, r, cap_log2);
            derivative = 4.0f * r * (1.0f - r);
        }
        return __builtin_fmaf(-slope_log2, absolute_value(distance), unbiased);
    }
};

// The slope of a head, base 2.
KITTENS_DEVICE float slope_log2_of(const ScoreTermArguments& arguments, int batch, int head) {
    constexpr float log2_e = 1.4426950408889634f;
    return arguments.slopes ? arguments.slopes[batch * arguments.slopes_of_sequence + head] * log2_e : 0.0f;
}

// Converts products of a lane's query to base-2 scores. `place`: the position of the lane's query minus the first column.
template <class Columns, ScoreTerms terms, class Shape, class T, int rows, int cols>
KITTENS_DEVICE void apply_terms(rt<T, rows, cols, row_l, Shape>& scores, const ScoreShape<terms>& shape,
                                float slope_log2, int place) {
    using Tile = rt<T, rows, cols, row_l, Shape>;
    static_assert(Tile::height == 1 && Columns::rows == Shape::rows, "a lane's scores belong to one row");
    constexpr int per_lane = Columns::rows * Columns::cols / wave_lanes;
    const auto first = static_cast<float>(row_layout(Columns::value(), lane_id(), 0).col - place);
#pragma unroll
    for (int j = 0; j < Tile::width; ++j)
#pragma unroll
        for (int e = 0; e < Tile::per_lane; ++e) {
            const int number = j * Tile::per_lane + e;
            const int column =
                number / per_lane * Columns::cols + row_layout(Columns::value(), 0, number % per_lane).col;
            float derivative;
            scores.tiles[0][j][e] = shape.score(scores.tiles[0][j][e], slope_log2,
                                                first + static_cast<float>(column), derivative);
        }
}

}  // namespace hipkittens::attention
