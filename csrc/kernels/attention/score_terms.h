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
// is 4 r (1 - r). Where no score of a wave is close to the cap, a polynomial takes half of the time (ScoresBelowCap).
template <ScoreTerms terms>
struct ScoreShape {
    static constexpr bool capped = terms == ScoreTerms::softcap;
    float scale_log2;  // for products without a cap
    float cap_log2, inner_log2;
    bool has_slopes;

    KITTENS_DEVICE ScoreShape(float scale_log2, const ScoreTermArguments& arguments)
        : scale_log2(scale_log2),
          cap_log2(arguments.cap_log2),
          inner_log2(arguments.inner_log2),
          has_slopes(arguments.slopes) {}

    // The score of a product q k at a distance with either sign, minus `base`. `derivative`: with a cap, that of the score with
    // respect to x.
    KITTENS_DEVICE float score(float product, float slope_log2, float distance, float base,
                               float& derivative) const {
        float unbiased;
        if constexpr (capped) {
            const float r = hardware_reciprocal(1.0f + exponential_base_2(product * inner_log2)),
                        four = 4.0f * r;
            unbiased = __builtin_fmaf(-2.0f * cap_log2, r, cap_log2 - base);
            derivative = __builtin_fmaf(-four, r, four);
        } else {
            unbiased = __builtin_fmaf(product, scale_log2, -base);
        }
        return __builtin_fmaf(-slope_log2, absolute_value(distance), unbiased);
    }
};

// The slope of a head, base 2.
KITTENS_DEVICE float slope_log2_of(const ScoreTermArguments& arguments, int batch, int head) {
    constexpr float log2_e = 1.4426950408889634f;
    return arguments.slopes ? arguments.slopes[batch * arguments.slopes_of_sequence + head] * log2_e : 0.0f;
}

// Scores with a cap, by a polynomial instead of two slow instructions: where no product of a wave is close to the cap.
class ScoresBelowCap {
    using Pair = vec<float, 2>;
    // tanh(z ln(2) / 2) = z p(z^2), where 2^z = e^(2 x / cap), for |z| <= reach: 0.866 of the cap. The relative error is at most
    // 1.3e-7 (minimax, by Remez' algorithm).
    static constexpr float reach = 2.5f;
    static constexpr int count = 6;
    static constexpr float series[count] = {-3.40098816e-8f, 1.32930032e-6f,  -3.16853058e-5f,
                                            6.65681635e-4f,  -1.38755201e-2f, 3.46573548e-1f};
    float inner_log2, coefficients[count];  // the cap is a factor of the coefficients
    float reached;                          // less than any score where there are slopes

    KITTENS_DEVICE static float in_scalar_register(float of_every_lane) {
        return __builtin_bit_cast(float, uniform(__builtin_bit_cast(uint32_t, of_every_lane)));
    }

  public:
    template <ScoreTerms terms>
    KITTENS_DEVICE explicit ScoresBelowCap(const ScoreShape<terms>& shape)
        : inner_log2(shape.inner_log2), reached(shape.has_slopes ? -1.0f : reach) {
#pragma unroll
        for (int i = 0; i < count; ++i) coefficients[i] = in_scalar_register(series[i] * shape.cap_log2);
    }

    template <class Scores>
    KITTENS_DEVICE bool holds(const Scores& products) const {
        float largest = 0;
        for_each_register<Scores>(
            [&](int i, int j, int e) { largest = larger(largest, absolute_value(products.tiles[i][j][e])); });
        return !any_lane(!(largest * absolute_value(inner_log2) <= reached));
    }
    template <class Scores>
    KITTENS_DEVICE void apply(Scores& products) const {
#pragma unroll
        for (int j = 0; j < Scores::width; ++j)
#pragma unroll
            for (int e = 0; e < Scores::per_lane; e += 2) {
                auto& values = products.tiles[0][j];
                const Pair z = Pair{values[e], values[e + 1]} * inner_log2, square = z * z;
                Pair ratio = coefficients[0];
#pragma unroll
                for (int i = 1; i < count; ++i)
                    ratio = __builtin_elementwise_fma(ratio, square, Pair(coefficients[i]));
                const Pair scores = z * ratio;
                values[e] = scores[0];
                values[e + 1] = scores[1];
            }
    }
};

// Converts products of a lane's query to base-2 scores. `place`: the position of the lane's query minus the first column.
template <class Columns, ScoreTerms terms, class Shape, class T, int rows, int cols>
KITTENS_DEVICE void apply_terms(rt<T, rows, cols, row_l, Shape>& scores, const ScoreShape<terms>& shape,
                                float slope_log2, int place) {
    using Tile = rt<T, rows, cols, row_l, Shape>;
    static_assert(Tile::height == 1 && Columns::rows == Shape::rows, "a lane's scores belong to one row");
    constexpr int per_lane = Columns::rows * Columns::cols / wave_lanes;
    if constexpr (ScoreShape<terms>::capped) {
        const ScoresBelowCap below(shape);
        if (below.holds(scores)) [[likely]] {
            below.apply(scores);
            return;
        }
    }
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
                                                first + static_cast<float>(column), 0.0f, derivative);
        }
}

}  // namespace hipkittens::attention
